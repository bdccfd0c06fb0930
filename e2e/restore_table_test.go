package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv"
)

// A tableRow is how a command of the table in docs/restore.md is tested: each path has a content
// afterwards. "-" means that it does not exist.
type tableRow struct {
	after map[string]string
	says  string // its output
	then  string // a command that follows
	mount bool   // the command mounts, and then runs while the paths are looked at
	fuse  bool   // the command mounts, and ends by itself
	fleet string // the script of a fleet that runs the command, with another target
}

// restoreTable has the commands of the table. In each row's directory is alice, which has changed
// since the last snapshot: draft.odt is "mine", notes.txt was deleted, and there is a new file. In
// the first snapshot, 3f2a, draft.odt was "first", and in the last one "second".
var restoreTable = map[string]tableRow{
	"bctl restore latest:alice/letters/draft.odt --target .":                              {after: map[string]string{"draft.odt": "second"}},
	"bctl restore 3f2a:alice/letters/draft.odt --target earlier":                          {after: map[string]string{"earlier/draft.odt": "first"}},
	"bctl cat latest:alice/notes.txt":                                                     {says: "notes"},
	"bctl mount backups":                                                                  {mount: true, after: map[string]string{"backups/filers/nas1/home/latest/alice/notes.txt": "notes"}},
	"bctl restore latest:alice --target alice-restored":                                   {after: map[string]string{"alice-restored/notes.txt": "notes", "alice/letters/draft.odt": "mine"}},
	"bctl restore latest:alice --target alice --overwrite never":                          {after: map[string]string{"alice/notes.txt": "notes", "alice/letters/draft.odt": "mine", "alice/new": "new"}},
	"bctl restore latest:alice --target alice --overwrite if-newer":                       {after: map[string]string{"alice/notes.txt": "notes", "alice/letters/draft.odt": "mine", "alice/new": "new"}},
	"bctl restore 3f2a:alice --target alice":                                              {after: map[string]string{"alice/notes.txt": "notes", "alice/letters/draft.odt": "first", "alice/new": "new"}},
	"bctl restore 3f2a:alice --target alice --delete":                                     {after: map[string]string{"alice/notes.txt": "notes", "alice/letters/draft.odt": "first", "alice/new": "-"}},
	"bctl restore latest:alice --target alice --in-place":                                 {after: map[string]string{"alice/notes.txt": "notes", "alice/letters/draft.odt": "second", "alice/new": "new"}},
	"bctl restore latest --target found --include '*.odt'":                                {after: map[string]string{"found/alice/letters/draft.odt": "second", "found/alice/notes.txt": "-"}},
	"bctl restore latest --target found --newer 24h":                                      {after: map[string]string{"found/alice/letters/draft.odt": "second", "found/alice/notes.txt": "-"}},
	"bctl restore latest --target home":                                                   {after: map[string]string{"home/alice/letters/draft.odt": "second", "home/alice/notes.txt": "notes"}},
	"bctl restore --filer nas1 --target new":                                              {after: map[string]string{"new/nas1/home/alice/letters/draft.odt": "second"}},
	"bctl restore --all --target new":                                                     {after: map[string]string{"new/nas1/home/alice/notes.txt": "notes"}},
	"bctl restore latest --target home --instant":                                         {fuse: true, after: map[string]string{"home/alice/letters/draft.odt": "second", "home/alice/notes.txt": "notes", "home/.bctl-instant": "-"}},
	"bctl restore latest --target /srv/new --fleet":                                       {fleet: "restorer.txtar"},
	"bctl dump latest:alice > alice.tar":                                                  {then: "mkdir out && tar -x -f alice.tar -C out", after: map[string]string{"out/letters/draft.odt": "second"}},
	"bctl dump latest:alice --archive zip > alice.zip":                                    {then: "python3 -m zipfile -e alice.zip out", after: map[string]string{"out/letters/draft.odt": "second"}},
	`bctl dump latest:alice | ssh nas2 tar -x -C /home/alice --acls --xattrs-include="*"`: {after: map[string]string{"nas2/home/alice/letters/draft.odt": "second"}},
}

// Each command of the table at the beginning of docs/restore.md does what the table promises.
func TestTableOfRestores(t *testing.T) {
	commands := tableOfRestores(t)
	home := t.TempDir()
	p := newTypist(t, fleet.Binary(t), map[string]string{
		"ssh": "#!/bin/sh\nshift\nmkdir -p nas2/home/alice\nexec $(echo \"$@\" | sed s,/home,nas2/home,)\n",
	}, "BCTL_REPO="+filepath.Join(t.TempDir(), "repo"))
	p.dir = home
	p.run(`
		mkdir -p home/alice/letters
		printf first > home/alice/letters/draft.odt; printf notes > home/alice/notes.txt; touch -d '3 days ago' home/alice/notes.txt
		bctl init
		bctl filer add nas1
		bctl shard add nas1 /home --source "$PWD/home"
		bctl backup --filer nas1
		printf second > home/alice/letters/draft.odt
		bctl backup --filer nas1`)
	first, _, _ := strings.Cut(strings.TrimSpace(p.run(`bctl snapshot ls --json | sed 's/.*"id":"\([0-9a-f]*\)".*/\1/' | head -n 1`)), "\n")
	for _, command := range commands {
		t.Run(command, func(t *testing.T) {
			row, ok := restoreTable[command]
			if !ok {
				t.Fatal("the table has a command that this test does not know")
			}
			if row.fleet != "" {
				script, err := os.ReadFile(filepath.Join("commands/testdata/fleet", row.fleet))
				if run := strings.ReplaceAll(command, "/srv/new", "$WORK/shared"); err != nil || !strings.Contains(string(script), "\n"+run+"\n") {
					t.Errorf("%s does not run %s: %v", row.fleet, run, err)
				}
				return
			}
			p := *p
			p.T, p.dir = t, t.TempDir()
			p.run("cp -a " + home + "/home/alice . && printf mine > alice/letters/draft.odt && printf new > alice/new && rm alice/notes.txt && mkdir backups")
			typed := strings.ReplaceAll(command, "3f2a", first) // ids differ
			if row.mount || row.fuse {
				needFUSE(t)
			}
			if row.mount {
				defer mountTyped(t, &p, typed)()
			} else if output := p.run(typed); !strings.Contains(output, row.says) {
				t.Errorf("%s", output)
			}
			if row.then != "" {
				p.run(row.then)
			}
			for path, want := range row.after {
				got, err := os.ReadFile(filepath.Join(p.dir, path))
				if want == "-" && os.IsNotExist(err) {
					continue
				}
				if err != nil || string(got) != want {
					t.Errorf("%s is %q, want %q (%v)", path, got, want, err)
				}
			}
		})
	}
	for command := range restoreTable {
		if !strings.Contains(strings.Join(commands, "\n"), command) {
			t.Errorf("the table does not have: %s", command)
		}
	}
}

// tableOfRestores returns the commands of the table.
func tableOfRestores(t *testing.T) (commands []string) {
	page, err := os.ReadFile("../docs/restore.md")
	if err != nil {
		t.Fatal(err)
	}
	inTable := false
	for line := range strings.Lines(string(page)) {
		switch {
		case strings.HasPrefix(line, "| what do you want back?"):
			inTable = true
		case inTable && !strings.HasPrefix(line, "|"):
			return commands
		case inTable && !strings.HasPrefix(line, "| ---"):
			_, cell, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
			found := regexp.MustCompile("`(bctl [^`]*)`").FindAllStringSubmatch(cell, -1)
			if len(found) == 0 {
				t.Errorf("a row without a command: %s", line)
			}
			for _, f := range found {
				commands = append(commands, strings.ReplaceAll(f[1], `\|`, "|"))
			}
		}
	}
	t.Fatal("docs/restore.md has no table")
	return nil
}

// needFUSE skips the test where nothing can be mounted.
func needFUSE(t *testing.T) {
	t.Helper()
	if device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil || device.Close() != nil || !testenv.MayMount() {
		t.Skipf("this test needs FUSE and the right to mount: %v", err)
	}
}

// mountTyped runs a command that mounts, until stop is called.
func mountTyped(t *testing.T, p *typist, typed string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), blockTimeout)
	command := exec.CommandContext(ctx, "bash", "-c", "exec "+typed+" >mounted")
	command.Dir, command.Env = p.dir, p.env
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	fleet.Await(t, "the mount", func() bool {
		said, _ := os.ReadFile(filepath.Join(p.dir, "mounted"))
		return strings.HasPrefix(string(said), "mounted at ")
	})
	return func() {
		defer cancel()
		if err := command.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
		if err := command.Wait(); err != nil {
			t.Errorf("%s: %v", typed, err)
		}
	}
}
