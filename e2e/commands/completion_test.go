package commands

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/testenv"
)

// The script completes in a bash that has nothing of the bash-completion package. Readline splits
// words at colons, so only a real line shows what is completed.
func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	for _, file := range []string{"tree/etc/hosts", "tree/exports/list", "tree/a dir/f 1", "tree/a:b", "tree/new\nline"} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, "bctl") // TestMain makes it one
	}
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "BCTL_REPO="+filepath.Join(dir, "repo"), "XDG_CONFIG_HOME="+dir+"/config", "XDG_CACHE_HOME="+dir+"/cache",
		"HOME="+dir, "PS1=$ ", "INPUTRC="+os.DevNull, "TERM=dumb", "HISTFILE=")
	bctl := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("./bctl", args...)
		cmd.Env = env
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return string(out)
	}
	bctl("init")
	bctl("filer", "add", "nas1")
	bctl("shard", "add", "nas1", "home", "--source", filepath.Join(dir, "tree"))
	bctl("backup", "--filer", "nas1", "--tag", "nightly")
	_, id, _ := strings.Cut(bctl("snapshot", "ls", "--json"), `"id":"`)
	id = id[:8]

	term := testenv.NewTerminal(t, 200, 50)
	shell := exec.CommandContext(t.Context(), bash, "--norc", "--noprofile", "-i")
	shell.Stdin, shell.Stdout, shell.Stderr, shell.Env = term.TTY, term.TTY, term.TTY, env
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		term.Type("\x15exit\n")
		_ = shell.Wait()
	}()
	term.Type("source <(bctl completion bash)\n")
	for n, test := range []struct{ typed, want string }{
		{"snapsho", "<snapshot><.>"},
		{"ls la", "<ls><latest.>"}, // a colon may follow
		{"ls " + id[:5], "<ls><" + id + ".>"},
		{"ls latest:et", "<ls><latest:etc/.>"},
		{"ls latest:etc/ho", "<ls><latest:etc/hosts><.>"},
		{"ls latest:e", "<ls><latest:e.>"}, // etc/ or exports/
		{`ls latest:a\ `, "<ls><latest:a dir/.>"},
		{`ls latest:a\ dir/f`, "<ls><latest:a dir/f 1><.>"},
		{"ls latest:a:", "<ls><latest:a:b><.>"},
		{"ls latest:n", "<ls><latest:n.>"}, // a shell cannot insert a newline
		{"ls " + id + ":exp", "<ls><" + id + ":exports/.>"},
		{"ls latest:" + dir + "/tree/et", "<ls><latest:" + dir + "/tree/etc/.>"},
		{"restore -v latest:et", "<restore><-v><latest:etc/.>"},
		{"restore --shard=ho", "<restore><--shard=home><.>"},
		{"ls --filer n", "<ls><--filer><nas1><.>"},
		{"ls --filer=nas1 latest:et", "<ls><--filer=nas1><latest:etc/.>"},
		{"snapshot ls --tag ni", "<snapshot><ls><--tag><nightly><.>"},
		{"snapshot show la", "<snapshot><show><latest><.>"},
		{"snapshot mark-bad " + id[:4], "<snapshot><mark-bad><" + id + "><.>"},
		{"snapshot mark-good " + id[:4], "<snapshot><mark-good><" + id[:4] + ".>"}, // it is not bad
	} {
		// The line becomes an argument of printf. A dot shows whether a space was inserted.
		term.Type("bctl " + test.typed + "\t.\x01printf '%s|<%s>" + strings.Repeat("<%s>", strings.Count(test.want, "<")) + "|\\n' " + fmt.Sprint("n", n) + " \x05\n")
		want := fmt.Sprintf("n%d|<bctl>%s|", n, test.want)
		ended := awaitText(term, fmt.Sprintf("n%d|<bctl>", n), "|\r\n")
		if text := term.Text(); !strings.Contains(text, want) {
			t.Errorf("%s: want %s in\n%s", test.typed, want, text[max(0, len(text)-600):])
		}
		if !ended {
			break
		}
	}
}

// awaitText waits until the terminal shows text that begins and ends so.
func awaitText(term *testenv.Terminal, begin, end string) bool {
	deadline := time.After(30 * time.Second)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		if _, after, ok := strings.Cut(term.Text(), begin); ok && strings.Contains(after, end) {
			return true
		}
		select {
		case <-look.C:
		case <-deadline:
			return false
		}
	}
}
