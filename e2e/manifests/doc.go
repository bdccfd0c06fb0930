// Package manifests tests deploy/kubernetes as far as that goes without a cluster. Every overlay is
// built with kustomize, with what a real bctl deploy init has made, and then
//
//	kinds_test.go       is what Kubernetes, KEDA and the Prometheus operator know, field by field
//	references_test.go  names only what is there: selectors, secrets, volumes, ports, targets of scaling
//	pods_test.go        asks for no more rights than it needs, is admitted, has limits, and can be drained
//	identities_test.go  gives each pod its own certificate, and nobody the authority's key or what opens backups
//	start_test.go       has arguments, settings, ports and probes that the real bctl understands
//	docs_test.go        is used as docs/kubernetes.md says, word for word
//
// It is a module of its own: the types of Kubernetes, and what they need, are none of bctl's
// dependencies. What KEDA asks Postgres is tested in internal/index/pgindex, beside the plans of
// other queries.
package manifests
