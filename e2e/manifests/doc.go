// Package manifests tests deploy/kubernetes without a cluster. It builds every overlay with
// kustomize and the output of a real bctl deploy init, and checks that the result
//
//	kinds_test.go       is what Kubernetes, KEDA and the Prometheus operator know, field by field
//	references_test.go  refers only to things that exist: selectors, secrets, volumes, ports …
//	pods_test.go        has no needless rights, is admitted, has limits, and can be drained
//	identities_test.go  gives each pod its own certificate, and no pod an identity or the key of the
//	                    authority
//	start_test.go       has arguments, settings, ports and probes that the real bctl understands
//	docs_test.go        is used as docs/kubernetes.md says, word for word
//
// It is a module of its own, because bctl does not depend on the types of Kubernetes and their
// dependencies. The query that KEDA sends to Postgres is tested in internal/index/pgindex, beside
// the plans of other queries.
package manifests
