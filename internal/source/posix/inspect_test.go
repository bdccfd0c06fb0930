package posix

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

const mountLines = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
41 22 0:40 / /mnt/a\040filer rw,noatime shared:9 master:2 - nfs4 filer:/export/a\040b rw,vers=4.2,rsize=65536,hard
43 22 0:41 /part /mnt/nothing\040named ro - tmpfs  rw,size=4k
broken line
`

func TestMountTable(t *testing.T) {
	t.Parallel()
	mounts, err := parseMounts(strings.NewReader(mountLines))
	if err != nil {
		t.Fatal(err)
	}
	var m Mount
	if err := m.find(mounts, 41); err != nil {
		t.Fatal(err)
	}
	if m.Point != "/mnt/a filer" || m.FileSystem != "nfs4" || m.Device != "filer:/export/a b" || !m.Network() {
		t.Errorf("%+v", m)
	}
	for name, want := range map[string]string{"vers": "4.2", "noatime": "", "rsize": "65536"} {
		if value, ok := m.Option(name); !ok || value != want {
			t.Errorf("%s is %q, %v", name, value, ok)
		}
	}
	if _, ok := m.Option("ro"); ok {
		t.Error("ro is there")
	}
	var unnamed Mount
	if err := unnamed.find(mounts, 43); err != nil || unnamed.Point != "/mnt/nothing named" || unnamed.Device != "" {
		t.Errorf("%+v, %v", unnamed, err)
	}
	var none Mount
	if err := none.find(mounts, 99); !errors.Is(err, backup.ErrNotFound) {
		t.Error(err)
	}
}

func TestMountOf(t *testing.T) {
	t.Parallel()
	proc, err := MountOf("/proc")
	if err != nil || proc.FileSystem != "proc" || proc.Point != "/proc" || !proc.Root || proc.Network() {
		t.Errorf("%+v, %v", proc, err)
	}
	dir, err := MountOf(t.TempDir())
	if err != nil || dir.Root || dir.FreeBytes == 0 {
		t.Errorf("%+v, %v", dir, err)
	}
	if _, err := MountOf("/nowhere"); !errors.Is(err, backup.ErrNotFound) {
		t.Error(err)
	}
}

// A survey records entries that cannot be read, and continues.
func TestSurveyOfWhatIsDenied(t *testing.T) {
	if os.Getuid() == 0 {
		asNobody(t) // root may read everything
		return
	}
	dir := t.TempDir()
	for _, name := range []string{"open", "closed"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "file"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "closed"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "closed"), 0o700) })
	s, err := New(Options{}).Survey(t.Context(), dir, 100)
	if err != nil || s.Denied != 1 || s.DeniedPath != "closed" || s.Entries != 1 || s.File != "open/file" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := New(Options{}).Survey(t.Context(), filepath.Join(dir, "closed"), 100); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
}

// asNobody runs the test again as a user other than root.
func asNobody(t *testing.T) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "bctl-nobody-") //nolint:usetesting // t.TempDir is below a directory that only its user may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(tmp, "test")
	if err := errors.Join(os.WriteFile(binary, data, 0o755), os.Chmod(tmp, 0o777)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}
