package manifests

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// folderOf is the identity of a pod, as bctl deploy names its folder.
func folderOf(p podOf) string {
	component := p.labels["app.kubernetes.io/component"]
	switch site := p.labels["site"]; {
	case component == "migrate":
		return "admin"
	case site != "":
		return component + "@" + site
	default:
		return component
	}
}

// Each pod has the certificate of its own role and site, with its key.
func TestPodsHaveTheirOwnCertificate(t *testing.T) {
	eachPod(t, func(t *testing.T, f *fleet, p podOf) {
		secret := f.secretOf(t, p)
		pair, err := tls.X509KeyPair(secret.Data["cert.pem"], secret.Data["key.pem"])
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if name := certificate.Subject.CommonName; name != folderOf(p)+"/1" {
			t.Errorf("it is %q, want %q", name, folderOf(p)+"/1")
		}
		var settings struct{ Worker struct{ Site string } }
		if err := yaml.Unmarshal(secret.Data["bctl.yaml"], &settings); err != nil {
			t.Fatal(err)
		}
		if settings.Worker.Site != p.labels["site"] {
			t.Errorf("its site is %q, and its pods are said to be at %q", settings.Worker.Site, p.labels["site"])
		}
	})
}

// A pod has all files of its identity, so that a file that bctl deploy makes in future is not
// forgotten, and none but these: what opens backups is in no cluster.
func TestPodsHaveTheFilesOfTheirIdentity(t *testing.T) {
	eachPod(t, func(t *testing.T, f *fleet, p podOf) {
		folder := folderOf(p)
		want := slices.DeleteFunc(filesIn(t, f.installation+"/"+folder), func(name string) bool {
			return name == "worker.key" || name == "committer.key" || name == "identity.txt"
		})
		if strings.HasPrefix(folder, "reader@") {
			want = append(want, "worker.key")
		}
		if folder == "committer" {
			want = append(want, "committer.key")
		}
		got := slices.Sorted(maps.Keys(f.secretOf(t, p).Data))
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("it has %q, want %q", got, want)
		}
	})
}

// Every Secret is of one identity, and mounted by one pod, or read by Prometheus. They are named by
// their content: a pod whose certificate was renewed is made anew.
func TestSecrets(t *testing.T) {
	eachFleet(t, func(t *testing.T, f *fleet) {
		users := map[string][]string{}
		for _, p := range f.pods() {
			name := f.secretOf(t, p).Name
			users[name] = append(users[name], p.name)
			for _, v := range p.spec.Volumes {
				if v.Secret != nil && (v.Secret.DefaultMode == nil || *v.Secret.DefaultMode != 0o440) {
					t.Errorf("%s: others may read %s", p.name, v.Name)
				}
			}
		}
		for _, s := range all[*corev1.Secret](f) {
			if len(users[s.Name]) > 1 || len(users[s.Name]) == 0 && !strings.HasPrefix(s.Name, "monitor-") {
				t.Errorf("Secret %s is used by %q", s.Name, users[s.Name])
			}
			if at := strings.LastIndexByte(s.Name, '-'); len(s.Name)-at != 11 {
				t.Errorf("Secret %s is not named by its content", s.Name)
			}
			for name, data := range s.Data {
				if name == "identity.txt" || name == "ca.key" || strings.Contains(string(data), "identity.txt of") {
					t.Errorf("Secret %s has what no cluster should have: %s", s.Name, name)
				}
				for _, key := range []string{"worker.key", "committer.key"} {
					if (name == key) != (string(data) == key+" of a repository\n") {
						t.Errorf("Secret %s: %s is %q", s.Name, name, data)
					}
				}
			}
		}
	})
}
