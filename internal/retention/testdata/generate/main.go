// The command generate writes the decisions of restic that the tests of package retention expect.
// It is run by hand, with restic 0.19.1, when histories or rules are added:
//
//	go run ./internal/retention/testdata/generate -restic /path/to/restic
//
// For each time zone it creates a repository whose snapshots are random histories, one per host,
// and runs "restic forget --dry-run --json" in it for each set of rules. No data is backed up: a
// snapshot is a small encrypted file, and the command writes these files itself, because thousands
// of runs of "restic backup" take an hour. It runs for about ten minutes. The histories depend on
// -seed only.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// A snapshot of a history.
type snapshot struct {
	Time time.Time `json:"time"`
	Tags []string  `json:"tags,omitempty"`
}

// A kept snapshot, and why.
type kept struct {
	Index   int      `json:"i"` // in the history
	Matches []string `json:"m"`
}

// A group is one history, and what restic keeps of it by each set of rules; null: restic refuses to
// forget all.
type group struct {
	Zone      string     `json:"zone"`
	Kind      string     `json:"kind"`
	Snapshots []snapshot `json:"snapshots"`
	Kept      [][]kept   `json:"kept"`
}

type decisions struct {
	Restic string     `json:"restic"`
	Seed   uint64     `json:"seed"`
	Rules  [][]string `json:"rules"`
	Groups []group    `json:"groups"`
}

var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"}

func main() {
	restic := flag.String("restic", "restic", "path of restic 0.19.1")
	out := flag.String("out", "internal/retention/testdata/restic.json.gz", "file to write")
	seed := flag.Uint64("seed", 1, "seed of the histories and rules")
	flag.Parse()
	if err := run(*restic, *out, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(restic, out string, seed uint64) error {
	version, err := exec.Command(restic, "version").Output()
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	d := decisions{Restic: strings.TrimSpace(string(version)), Seed: seed, Rules: ruleSets(rng)}
	for _, name := range zones {
		zone, err := time.LoadLocation(name)
		if err != nil {
			return err
		}
		groups := histories(rng, name, zone)
		if err := decide(restic, name, zone, d.Rules, groups); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		d.Groups = append(d.Groups, groups...)
	}
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer file.Close()
	w, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(w).Encode(d); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return file.Close()
}

// decide fills in what restic keeps of each group.
func decide(restic, name string, zone *time.Location, rules [][]string, groups []group) error {
	dir, err := os.MkdirTemp("", "retention")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	call := func(args ...string) ([]byte, error) {
		cmd := exec.Command(restic, append(args, "--insecure-no-password", "--no-cache", "--repo", dir)...)
		cmd.Env = append(os.Environ(), "TZ="+name)
		return cmd.Output()
	}
	if _, err := call("init"); err != nil {
		return err
	}
	repo, err := openRepository(dir)
	if err != nil {
		return err
	}
	index := map[string]int{}
	for g := range groups {
		for i, s := range groups[g].Snapshots {
			id, err := repo.save(s, fmt.Sprintf("h%d", g), zone)
			if err != nil {
				return err
			}
			index[id] = i
		}
	}
	for n, args := range rules {
		forget := append([]string{"forget", "--dry-run", "--json", "--no-lock", "--group-by", "host"}, args...)
		text, err := call(forget...)
		if err == nil {
			err = read(text, groups, index)
		} else if refused(err) {
			err = eachAlone(call, forget, groups, index)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
		}
		for g := range groups {
			if len(groups[g].Kept) != n+1 {
				return fmt.Errorf("%s: no decisions for group %d", strings.Join(args, " "), g)
			}
		}
	}
	return nil
}

// refused reports whether restic refuses to remove all snapshots of some group.
func refused(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && bytes.Contains(exit.Stderr, []byte("refusing to delete last snapshot"))
}

// eachAlone asks about one group at a time. The decisions of a group that restic refuses are null.
func eachAlone(call func(...string) ([]byte, error), forget []string, groups []group, index map[string]int) error {
	for g := range groups {
		text, err := call(append(forget, "--host", fmt.Sprintf("h%d", g))...)
		if err == nil {
			err = read(text, groups, index)
		} else if refused(err) {
			groups[g].Kept, err = append(groups[g].Kept, nil), nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// read adds one output of restic forget --json to the groups.
func read(text []byte, groups []group, index map[string]int) error {
	var found []struct {
		Host    string     `json:"host"`
		Keep    []struct{} `json:"keep"`
		Remove  []struct{} `json:"remove"`
		Reasons []struct {
			Snapshot struct{ ID string } `json:"snapshot"`
			Matches  []string            `json:"matches"`
		} `json:"reasons"`
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return err
	}
	for _, f := range found {
		g, list := 0, []kept{}
		if _, err := fmt.Sscanf(f.Host, "h%d", &g); err != nil {
			return err
		}
		if all := len(groups[g].Snapshots); len(f.Keep)+len(f.Remove) != all || len(f.Reasons) != len(f.Keep) {
			return fmt.Errorf("%s: %d kept, %d removed, %d reasons, of %d", f.Host, len(f.Keep), len(f.Remove), len(f.Reasons), all)
		}
		for _, r := range f.Reasons {
			i, ok := index[r.Snapshot.ID]
			if !ok {
				return fmt.Errorf("snapshot %s is unknown", r.Snapshot.ID)
			}
			list = append(list, kept{i, r.Matches})
		}
		slices.SortFunc(list, func(a, b kept) int { return a.Index - b.Index })
		groups[g].Kept = append(groups[g].Kept, list)
	}
	return nil
}

// ruleSets returns rules by hand, and random ones.
func ruleSets(rng *rand.Rand) [][]string {
	var sets [][]string
	for _, text := range []string{
		"--keep-last 1", "--keep-last 5", "--keep-last unlimited", "--keep-hourly 3", "--keep-hourly 24", "--keep-hourly unlimited",
		"--keep-daily 1", "--keep-daily 7", "--keep-daily unlimited", "--keep-weekly 1", "--keep-weekly 5", "--keep-weekly unlimited",
		"--keep-monthly 3", "--keep-monthly 12", "--keep-monthly unlimited", "--keep-yearly 2", "--keep-yearly 10", "--keep-yearly unlimited",
		"--keep-daily 7 --keep-weekly 4 --keep-monthly 12", "--keep-last 3 --keep-daily 13 --keep-weekly 8 --keep-monthly 11 --keep-yearly 9",
		"--keep-within 1d", "--keep-within 1h", "--keep-within 1m", "--keep-within 1y5m7d2h", "--keep-within 30d", "--keep-within 24h",
		"--keep-within-hourly 2d", "--keep-within-daily 7d", "--keep-within-weekly 1m", "--keep-within-monthly 1y", "--keep-within-yearly 75y",
		"--keep-within-daily 7d --keep-within-weekly 1m --keep-within-monthly 1y --keep-within-yearly 75y",
		"--keep-tag a", "--keep-tag a,b", "--keep-tag a,b --keep-tag c", "--keep-tag missing", "--keep-tag missing --keep-last 1",
	} {
		sets = append(sets, strings.Fields(text))
	}
	for len(sets) < 72 {
		var args []string
		for _, name := range []string{"last", "hourly", "daily", "weekly", "monthly", "yearly"} {
			if rng.IntN(3) == 0 {
				args = append(args, "--keep-"+name, fmt.Sprint(1+rng.IntN(1+rng.IntN(20))))
			}
		}
		for _, name := range []string{"", "-hourly", "-daily", "-weekly", "-monthly", "-yearly"} {
			if rng.IntN(6) == 0 {
				args = append(args, "--keep-within"+name, duration(rng))
			}
		}
		for _, tag := range []string{"a", "b,c", "c"} {
			if rng.IntN(12) == 0 {
				args = append(args, "--keep-tag", tag)
			}
		}
		if len(args) > 0 {
			sets = append(sets, args)
		}
	}
	return sets
}

func duration(rng *rand.Rand) string {
	for {
		text := ""
		for _, unit := range []struct {
			name string
			most int
		}{{"y", 3}, {"m", 14}, {"d", 40}, {"h", 60}} {
			if rng.IntN(3) == 0 {
				text += fmt.Sprint(1+rng.IntN(unit.most)) + unit.name
			}
		}
		if text != "" {
			return text
		}
	}
}
