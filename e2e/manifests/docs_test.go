package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

const page = repository + "/docs/kubernetes.md"

var shell = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// The commands of docs/kubernetes.md work, word for word and one after the other, as far as that
// goes without servers and a cluster: testdata/bin has what stands for these. What is applied can
// be built, has the Deployments that are waited for, and a rotation makes other Secrets.
func TestCommandsOfTheDocumentation(t *testing.T) {
	program, err := bctl()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	stubs, err := filepath.Abs("testdata/bin")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	if err := os.CopyFS(filepath.Join(home, "deploy/kubernetes"), os.DirFS(tree)); err != nil {
		t.Fatal(err)
	}
	log, values := filepath.Join(home, "kubectl.log"), filepath.Join(home, "values.yaml")
	f := &fleet{overlay: "docs"}
	secrets := map[string]bool{} // that the Deployments of single-site have had
	for _, block := range shell.FindAllStringSubmatch(string(text), -1) {
		run := exec.Command("bash", "-euo", "pipefail", "-c", block[1])
		run.Dir = home
		run.Env = append(os.Environ(), "PATH="+stubs+":"+os.Getenv("PATH"), "BCTL_PROGRAM="+program, "KUBECTL_LOG="+log, "HELM_VALUES="+values)
		if output, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s\n%v\n%s", block[1], err, output)
		}
		done, err := os.ReadFile(log)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		_ = os.Remove(log)
		for line := range strings.Lines(string(done)) {
			verb, name, _ := strings.Cut(strings.TrimSpace(line), " ")
			if verb == "build" {
				f.objects = f.build(t, filepath.Join(home, name))
				for _, d := range f.deployments() {
					secrets[d.Spec.Template.Spec.Volumes[0].Secret.SecretName] = true
				}
			} else if _, ok := find[*appsv1.Deployment](f, name); !ok {
				t.Errorf("%s\nthere is no Deployment %s", block[1], name)
			}
		}
	}
	if len(secrets) != 2*5+1 {
		t.Errorf("five Deployments have had the Secrets %v, want two each: one before the rotation and one after it; and the mirror has had one", secrets)
	}
	var chart struct{ Volumes map[string]any }
	if data, err := os.ReadFile(values); err != nil || yaml.UnmarshalStrict(data, &chart) != nil || chart.Volumes["keda"] == nil {
		t.Errorf("values for KEDA's chart: %s, %v", data, err)
	}
}
