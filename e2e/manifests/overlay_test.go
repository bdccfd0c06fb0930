package manifests

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const (
	repository = "../.."
	tree       = repository + "/deploy/kubernetes"
)

// overlays are all that there are.
var overlays = []string{"single-site", "two-sites"}

// byThemselves are the folders of an overlay that it does not contain.
var byThemselves = []string{"operator", "mirror"}

// directory is of files that all tests of this binary share.
var directory string

func TestMain(m *testing.M) {
	var err error
	if directory, err = os.MkdirTemp("", "bctl-manifests-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	_ = os.RemoveAll(directory)
	os.Exit(status)
}

// bctl is the program, built from this source, or that of BCTL_E2E_PROGRAM.
var bctl = sync.OnceValues(func() (string, error) {
	if program := os.Getenv("BCTL_E2E_PROGRAM"); program != "" {
		return program, nil
	}
	path := filepath.Join(directory, "bctl")
	build := exec.Command("go", "build", "-C", repository, "-buildvcs=false", "-o", path, "./services/bctl")
	build.Env = append(os.Environ(), "GOWORK=off")
	output, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build bctl: %w\n%s", err, output)
	}
	return path, nil
})

// A fleet is an overlay with the identities of an installation: what it came from, and what
// kustomize makes of it.
type fleet struct {
	overlay      string
	installation string // what bctl deploy init has made
	objects      []object
}

// An object as it is sent to Kubernetes.
type object struct {
	kind, name, namespace string
	yaml                  []byte
	typed                 runtime.Object // nil: of a kind that has no Go type here
}

var (
	fleetsMade sync.Mutex
	fleets     = map[string]*fleet{}
)

// fleetOf makes an overlay once.
func fleetOf(t *testing.T, overlay string) *fleet {
	t.Helper()
	fleetsMade.Lock()
	defer fleetsMade.Unlock()
	if fleets[overlay] == nil {
		fleets[overlay] = makeFleet(t, overlay)
	}
	return fleets[overlay]
}

// eachFleet runs a test of every overlay.
func eachFleet(t *testing.T, test func(t *testing.T, f *fleet)) {
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) { test(t, fleetOf(t, overlay)) })
	}
}

// makeFleet does what docs/kubernetes.md says: an installation, and each identity's files beside
// its kustomization.
func makeFleet(t *testing.T, overlay string) *fleet {
	t.Helper()
	f := &fleet{overlay: overlay, installation: filepath.Join(directory, overlay, "installation")}
	copied := filepath.Join(directory, overlay, "kubernetes")
	if err := os.CopyFS(copied, os.DirFS(tree)); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(copied, "overlays", overlay)
	init := []string{
		"deploy", "init", f.installation, "--nats", "nats1.example.com,nats2.example.com,nats3.example.com", "--postgres", "db.example.com",
		"--store", "s3://bctl/repo", "--store-endpoint", "https://s3.example.com", "--store-kind", "minio",
	}
	for _, folder := range identityFolders(t, root) {
		if role, site, _ := strings.Cut(folder, "@"); role == "walker" {
			init = append(init, "--site", site)
		}
	}
	runBctl(t, init...)
	for _, name := range []string{"worker.key", "committer.key", "identity.txt"} { // bctl init makes them there
		writeFile(t, filepath.Join(f.installation, "admin", name), []byte(name+" of a repository\n"))
	}
	writeFile(t, filepath.Join(f.installation, "mirror", "mirror-credentials"), []byte("[default]\naws_access_key_id = mirror\naws_secret_access_key = second\n"))
	if output, err := exec.Command(filepath.Join(copied, "identities.sh"), f.installation, root).CombinedOutput(); err != nil {
		t.Fatalf("identities.sh: %v\n%s", err, output)
	}
	f.objects = f.build(t, root)
	if _, ok := find[*appsv1.Deployment](f, "mirror"); ok {
		t.Errorf("%s has a mirror that nobody asked for", overlay)
	}
	for _, name := range byThemselves {
		f.objects = append(f.objects, f.build(t, filepath.Join(root, name))...)
	}
	return f
}

// identityFolders are the folders of an overlay that stand for an identity.
func identityFolders(t *testing.T, root string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.IsDir() && !strings.HasPrefix(entry.Name(), "site-") {
			names = append(names, entry.Name())
		}
	}
	return names
}

func (f *fleet) build(t *testing.T, root string) (objects []object) {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), root)
	if err != nil {
		t.Fatalf("%s: %v", f.overlay, err)
	}
	for _, r := range made.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		o := object{kind: r.GetKind(), name: r.GetName(), namespace: r.GetNamespace(), yaml: text}
		if o.typed, err = decode(text); err != nil {
			t.Errorf("%s: %s %s: %v", f.overlay, o.kind, o.name, err)
		}
		objects = append(objects, o)
	}
	return objects
}

// all returns the objects of a Go type.
func all[T runtime.Object](f *fleet) (list []T) {
	for _, o := range f.objects {
		if typed, ok := o.typed.(T); ok {
			list = append(list, typed)
		}
	}
	return list
}

// find returns the object of a Go type that has this name.
func find[T runtime.Object](f *fleet, name string) (found T, ok bool) {
	for _, o := range f.objects {
		if typed, is := o.typed.(T); is && o.name == name {
			return typed, true
		}
	}
	return found, false
}

func (f *fleet) deployments() []*appsv1.Deployment { return all[*appsv1.Deployment](f) }

func runBctl(t *testing.T, arguments ...string) string {
	t.Helper()
	program, err := bctl()
	if err != nil {
		t.Fatal(err)
	}
	output, err := exec.Command(program, arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("bctl %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	return string(output)
}

func filesIn(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	entries = slices.DeleteFunc(entries, fs.DirEntry.IsDir)
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// secretOf is what a pod has below /etc/bctl.
func (f *fleet) secretOf(t *testing.T, pod podOf) *corev1.Secret {
	t.Helper()
	for _, volume := range pod.spec.Volumes {
		if volume.Name == "identity" && volume.Secret != nil {
			if secret, ok := find[*corev1.Secret](f, volume.Secret.SecretName); ok {
				return secret
			}
		}
	}
	t.Fatalf("%s has no identity", pod.name)
	return nil
}
