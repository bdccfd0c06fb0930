package debian

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/testcontainers/testcontainers-go/network"

	"github.com/bctl/bctl/e2e/dockertest"
	"github.com/bctl/bctl/e2e/manual"
)

const page = "docs/operations.md"

// A reading follows the page on machines of its own.
type reading struct {
	main     *machine
	machines map[string]*machine
	first    *release
	newer    *release
}

// From an empty Debian to a scheduled backup that is restored equal, and on: with another filer,
// another machine, other credentials and a newer version. The test types the commands of the page.
func TestOperations(t *testing.T) {
	docker := dockertest.Daemon(t)
	net, err := network.New(t.Context(), network.WithLabels(map[string]string{dockertest.Label: "debian"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := net.Remove(contextOf(t)); err != nil {
			t.Error(err)
		}
	})
	first, newer := releaseOf(t, "1"), releaseOf(t, "2", "archive", "sbom")
	r := &reading{machines: map[string]*machine{}, first: first, newer: newer}
	// The trees to back up are on file systems that both machines see.
	home, exported := t.TempDir()+":/home", t.TempDir()+":/exported"
	for _, name := range []string{"backup.example.com", "walker2.example.com"} {
		r.machines[name] = boot(t, docker, name, net.Name, home, exported)
	}
	r.main = r.machines["backup.example.com"]
	r.main.run(t, tree)
	section := ""
	for _, b := range blocks(t, page) {
		if t.Failed() {
			return
		}
		if b.Section != section {
			r.after(t, section)
			section = b.Section
		}
		r.follow(t, b)
	}
	r.after(t, section)
}

// follow types a block, or does what stands for it where the page needs the world.
func (r *reading) follow(t *testing.T, b manual.Block) {
	t.Helper()
	at, name, _ := strings.Cut(b.Kind, " ")
	switch {
	case b.Kind == "":
		r.main.run(t, b.Text)
	case at == "on" && r.machines[name] != nil:
		r.machines[name].run(t, b.Text)
	case b.Kind == "download":
		r.download(t)
	case b.Kind == "download newer":
		r.main.run(t, "rm downloads/bctl_*_amd64.deb")
		r.main.give(t, r.newer.file(t, "*.deb"), "/root/downloads/bctl_0.0.1~snapshot.2_amd64.deb", 0o644)
	case b.Kind == "mount":
		r.main.run(t, "mkdir /exported/projects && cp --recursive /usr/share/bash-completion /exported/projects")
		for _, m := range r.machines {
			m.run(t, "mkdir --parents /srv/nas1 && mount --bind --options ro /exported /srv/nas1")
		}
	case b.Kind == "lost":
		r.losesPostgres(t)
		r.main.run(t, b.Text)
	case b.Kind == "copy":
		r.copy(t, b.Text)
	case b.Kind == "shared": // TestFleetsShareNATS does: the NATS of this machine is one fleet's
	default:
		t.Fatalf("%s has a block of a kind that is not known: %q", page, b.Kind)
	}
}

// download puts what was built here where the page's releases would be.
func (r *reading) download(t *testing.T) {
	t.Helper()
	r.main.run(t, "mkdir --parents /root/downloads")
	r.main.give(t, r.first.file(t, "*.deb"), "/root/downloads/bctl_0.0.1~snapshot.1_amd64.deb", 0o644)
	for name, setting := range map[string]string{"nats-server": "BCTL_NATS_SERVER", "versitygw": "BCTL_VERSITYGW", "mc": ""} {
		r.main.give(t, tool(t, name, setting), "/root/downloads/"+name, 0o755)
	}
}

// copy does what scp does: the machines have no ssh.
func (r *reading) copy(t *testing.T, commands string) {
	t.Helper()
	for line := range strings.Lines(commands) {
		words := strings.Fields(strings.Replace(line, "scp -r ", "scp ", 1))
		if len(words) != 3 || words[0] != "scp" {
			t.Fatalf("not understood: %s", line)
		}
		source := words[1]
		name, folder, _ := strings.Cut(strings.TrimPrefix(words[2], "root@"), ":")
		if folder == "" {
			folder = "/root"
		}
		for _, file := range strings.Fields(r.main.run(t, "cd "+filepath.Dir(source)+" && find "+filepath.Base(source)+" -type f")) {
			from, err := r.main.CopyFileFromContainer(t.Context(), filepath.Join(filepath.Dir(source), file))
			if err != nil {
				t.Fatal(err)
			}
			local := filepath.Join(t.TempDir(), filepath.Base(file))
			if err := save(local, from); err != nil {
				t.Fatal(err)
			}
			r.machines[name].run(t, "mkdir --parents "+filepath.Dir(filepath.Join(folder, file)))
			r.machines[name].give(t, local, filepath.Join(folder, file), 0o600)
		}
	}
}

// tree makes what people have at /home: files that only their owners may read, and others.
const tree = `
useradd --create-home alice
mkdir --parents /home/alice/private /home/alice/many
head --bytes 3000000 /dev/urandom >/home/alice/private/large
for i in $(seq 300); do echo "file $i" >/home/alice/many/$i; done
ln --symbolic private/large /home/alice/link
printf 'any bytes' >"/home/alice/$(printf 'name \377\376')"
chown --recursive alice: /home/alice
chmod 0600 /home/alice/private/large
chmod 0700 /home/alice/private
`

// after looks at what a section has led to, beyond what the page itself has looked at.
func (r *reading) after(t *testing.T, section string) {
	t.Helper()
	switch section {
	case "From an empty machine to a scheduled backup":
		r.isLockedDown(t)
		r.isConfined(t)
		r.isMeasured(t)
		r.isWatched(t)
	case "Scale walkers":
		r.takesPart(t)
	case "Rotate credentials":
		r.worksStill(t, "2")
	case "What to keep elsewhere":
		r.hasItsIndexBack(t)
		r.worksStill(t, "3")
	case "Upgrade":
		for name, m := range r.machines {
			if version := m.run(t, "dpkg-query --show --showformat '${Version}' bctl"); version != "0.0.1~snapshot.2" {
				t.Errorf("%s has %s", name, version)
			}
		}
		r.worksStill(t, "4")
		r.leaves(t)
	}
}
