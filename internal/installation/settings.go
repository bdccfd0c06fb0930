package installation

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/internal/store"
)

// The files in the folder of each identity.
const (
	certificateName  = "cert.pem"
	keyName          = "key.pem"
	authoritiesName  = "ca.pem" // also in the folder of each server
	settingsName     = "bctl.yaml"
	storeSecretName  = "s3-secret-key"
	credentialsName  = "s3-credentials" // created by people, if the store creates keys itself
	workerKeyName    = "worker.key"     // created by bctl init
	committerKeyName = "committer.key"  // created by bctl init
	identityName     = "identity.txt"   // created by bctl init
)

// The other files in the folder of each server.
const (
	serverCertificateName = "server.pem"
	serverKeyName         = "server.key"
)

// httpPort is the port of the services' metrics and health.
const httpPort = 9464

// home returns the folder with the credentials of a role.
func (i Identity) home() string {
	if i.Role == Monitor {
		return "prometheus"
	}
	return i.Folder()
}

// serverName is contained in the certificates of a role's services, independent of the machine.
// Prometheus verifies it.
func (p *Plan) serverName(r Role) string { return string(r) + "." + p.Name }

// services are the roles that serve metrics.
var services = []Role{Committer, Walker, Reader, Pruner, Scrubber, Restorer, Mirror}

// settingsFiles returns the settings of each identity in its newest generation, and its credentials
// for the store.
func settingsFiles(p *Plan, keys map[Identity]StoreKey) (files []File, err error) {
	for _, i := range p.newest() {
		if i.Role == Monitor {
			continue
		}
		s := p.settings(i)
		if key, ok := keys[i]; ok && i.Role.usesStore() {
			s["store"].(group)["access_key"] = key.Access
			s["store"].(group)["secret_key_file"] = storeSecretName
			files = append(files, File{Path: i.home() + "/" + storeSecretName, Data: []byte(key.Secret + "\n"), Secret: true})
		}
		var text bytes.Buffer
		fmt.Fprintf(&text, `# Written by bctl deploy for %s; bctl deploy refresh overwrites it. Put your own settings into the
# environment, which overrides this file: BCTL_WORKER_TASKS=8. docs/configuration.md lists them.
`, i.Name())
		if err := encodeYAML(&text, s); err != nil {
			return nil, err
		}
		files = append(files, File{Path: i.home() + "/" + settingsName, Data: text.Bytes()})
	}
	return files, nil
}

// A group of settings.
type group map[string]any

func encodeYAML(to *bytes.Buffer, v any) error {
	e := yaml.NewEncoder(to)
	e.SetIndent(2)
	if err := e.Encode(v); err != nil {
		return err
	}
	return e.Close()
}

// settings returns the settings of one identity: exactly those that its role needs.
func (p *Plan) settings(i Identity) group {
	tls := func(more group) group { // names are relative to the file that contains them
		more["ca_file"], more["cert_file"], more["key_file"] = authoritiesName, certificateName, keyName
		return more
	}
	index := url.URL{
		Scheme: "postgres", User: url.User(p.Name + "_" + string(i.Role)), Path: "/" + p.Postgres.Name,
		Host: net.JoinHostPort(p.Postgres.Host, strconv.Itoa(p.Postgres.Port)), RawQuery: "sslmode=verify-full",
	}
	s := group{}
	if i.Role.usesIndex() {
		s["index"] = tls(group{"url": index.String()})
	}
	if _, ok := i.access(); ok {
		nats := tls(group{"url": p.natsURL(), "inbox_prefix": i.inbox()})
		// The role that creates the streams, and the one that examines them.
		if i.Role == Committer || i.Role == Operator {
			nats["replicas"] = p.natsReplicas()
		}
		s["nats"] = nats
	}
	if i.Role.usesStore() {
		s["store"] = p.storeSettings()
	}
	switch i.Role {
	case Admin:
		s["worker_key"], s["committer_key"], s["identity"] = workerKeyName, committerKeyName, identityName
	case Operator:
		s["identity"] = identityName
	case Reader:
		s["worker_key"] = workerKeyName
	case Committer:
		s["committer_key"] = committerKeyName
	case Walker, Pruner, Scrubber, Restorer, Monitor, Mirror:
	}
	if i.Role.sited() {
		s["worker"] = group{"site": i.Site}
	}
	if slices.Contains(services, i.Role) {
		s["http"] = group{
			"listen": net.JoinHostPort(p.httpHost(), strconv.Itoa(httpPort)), "cert_file": certificateName, "key_file": keyName,
			"client_ca_file": authoritiesName, "clients": p.watchers(),
		}
	}
	return s
}

// httpHost returns the address on which services answer; "" stands for all. The services of an
// installation in place answer only on this machine, because it is for a trial.
func (p *Plan) httpHost() string {
	if p.InPlace != "" {
		return "127.0.0.1"
	}
	return ""
}

func (p *Plan) storeSettings() group {
	s := group{"url": p.Store.URL}
	if p.Store.Endpoint != "" {
		s["endpoint"] = p.Store.Endpoint
	}
	if p.Store.Region != "" {
		s["region"] = p.Store.Region
	}
	if p.Store.ObjectLock != store.Unlocked {
		s["object_lock"] = string(p.Store.ObjectLock)
	}
	if p.Store.DeleteVersions {
		s["delete_versions"] = true
	}
	if p.Store.Kind.Ours() {
		s["ca_file"] = authoritiesName
	} else {
		s["credentials_file"] = credentialsName
	}
	return s
}

// watchers returns the names in the certificates that may read metrics.
func (p *Plan) watchers() (names []string) {
	for _, i := range p.Identities() {
		if i.Role == Monitor {
			names = append(names, i.Name())
		}
	}
	return names
}

// prometheusFiles returns a configuration that scrapes the services, with the job names that
// deploy/prometheus/alerts.yaml uses.
func prometheusFiles(p *Plan) ([]File, error) {
	file := func(name string) string { return p.place("prometheus/" + name) }
	var jobs []group
	for _, role := range services {
		jobs = append(jobs, group{
			"job_name": "bctl-" + string(role), "scheme": "https",
			"tls_config": group{
				"ca_file": file(authoritiesName), "cert_file": file(certificateName), "key_file": file(keyName),
				"server_name": p.serverName(role), "min_version": "TLS12",
			},
			"file_sd_configs": []group{{"files": []string{file("targets-" + string(role) + ".yml")}}},
		})
	}
	var text bytes.Buffer
	text.WriteString(strings.TrimLeft(`
# Written by bctl deploy. You write the targets: targets-walker.yml, targets-reader.yml, targets-committer.yml,
# targets-pruner.yml, targets-scrubber.yml, targets-restorer.yml and, with a mirror, targets-mirror.yml in the directory
# of this file, each a list such as
#   - targets: ["walker1.example.com:9464", "walker2.example.com:9464"]
`, "\n"))
	err := encodeYAML(&text, group{"scrape_configs": jobs})
	return []File{{Path: "prometheus/prometheus.yml", Data: text.Bytes()}}, err
}
