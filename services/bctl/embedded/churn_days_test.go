package embedded_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// What people and programs do in thirty days raises no alarm. An attack on one of twenty files
// after that raises one, in the snapshot that has it.
func TestNormalDaysRaiseNoAlarm(t *testing.T) {
	for seed := range byte(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			if seed > 0 {
				testtarget.Need(t, testtarget.Often)
			}
			t.Parallel()
			o := newOfficeOf(t, seed)
			for i := range 40 {
				o.put(fmt.Sprintf("var/log/app%d.log", i), o.content(0))
			}
			o.day()
			worst := int64(0)
			for day := range 30 {
				o.next = day
				o.normal(day)
				s := o.day()
				if worst = max(worst, s.ChurnScore); s.Alarm != "" {
					t.Fatalf("day %d: %s", day, s.Alarm)
				}
			}
			n := len(o.files()) / 20
			o.encrypt(o.pick(n), n, func(_ int, path string) string { return path + ".locked" })
			s := o.day()
			if a := o.alarm(); a == nil || a.Alarm != s.ID {
				t.Errorf("alarm %+v, snapshot %+v", a, s)
			}
			t.Logf("the greatest score of thirty days is %d, that of %d files encrypted at once %d", worst, n, s.ChurnScore)
			if worst > 700 {
				t.Errorf("score %d of normal days", worst)
			}
		})
	}
}

// pick returns a number below n.
func (o *office) pick(n int) int { return rand.New(o.random).IntN(n) } //nolint:gosec // a seeded test

// normal does what happens in a day, each in a measure of its own.
func (o *office) normal(day int) {
	o.Helper()
	// Photographs, and containers that are encrypted from the beginning.
	for i := range 20 + o.pick(80) {
		o.put(fmt.Sprintf("home/user1/photos/%d/img%d.jpg", day, i), o.content(1))
	}
	o.put(fmt.Sprintf("home/user2/vault%d.xyz", day), o.content(5))
	o.rotateLogs(day)
	if o.pick(3) == 0 { // a release replaces programs and libraries
		o.must(os.RemoveAll(filepath.Join(o.tree, "opt")))
		for i := range 300 + o.pick(300) {
			o.put(fmt.Sprintf("opt/app/%d/lib%d-%d.so", i%20, i, day), append([]byte("\x7fELF\x02\x01\x01"), o.content(5)...))
		}
	}
	o.writeInPlace(1+o.pick(8), 1+o.pick(8))
	// Containers are written in place. They were opaque before.
	for i := 5; i < officeFiles; i += len(endings) * 3 {
		o.put(fmt.Sprintf("home/user%d/docs%d/file%d.xyz", i%7, i%31, i), o.content(5))
	}
	o.renameSome(day, 2+o.pick(8))
	if day%10 == 9 {
		o.encode()
	}
}

// rotateLogs compresses each log, and begins it again.
func (o *office) rotateLogs(day int) {
	o.Helper()
	for i := range 40 {
		log := filepath.Join(o.tree, fmt.Sprintf("var/log/app%d.log", i))
		data, err := os.ReadFile(log)
		o.must(err)
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err = w.Write(data)
		o.must(errors.Join(err, w.Close()))
		o.must(os.Remove(log))
		o.put(fmt.Sprintf("var/log/app%d.log.%d.gz", i, day), b.Bytes())
		o.put(fmt.Sprintf("var/log/app%d.log", i), o.content(0))
	}
}

// writeInPlace changes one of every databases and photographs, and one of others records. Somebody
// encrypts a document.
func (o *office) writeInPlace(every, others int) {
	o.Helper()
	documents := 0
	for i, path := range o.files() {
		switch ending := filepath.Ext(path); {
		case (ending == ".db" || ending == ".jpg") && i%every == 0:
			o.must(os.WriteFile(path, o.content(map[string]int{".db": 3, ".jpg": 1}[ending]), 0o600))
		case ending == ".dat" && i%others == 0:
			o.must(os.WriteFile(path, o.content(4), 0o600))
		case ending == ".txt":
			if documents++; documents == 1 {
				o.put(strings.TrimPrefix(path, o.tree)+".gpg", o.content(5))
				o.must(os.Remove(path))
			}
		}
	}
}

// renameSome gives directories and one of every documents another name.
func (o *office) renameSome(day, every int) {
	o.Helper()
	for i := range 7 {
		from, to := filepath.Join(o.tree, fmt.Sprintf("home/user%d/docs%d", i, day)), filepath.Join(o.tree, fmt.Sprintf("home/user%d/archive%d", i, day))
		if err := os.Rename(from, to); err != nil && !os.IsNotExist(err) {
			o.must(err)
		}
	}
	for i, path := range o.files() {
		if i%every == 0 && strings.HasSuffix(path, ".docx") {
			o.must(os.Rename(path, strings.TrimSuffix(path, ".docx")+fmt.Sprintf("-v%d.docx", day)))
		}
	}
}

// encode replaces all photographs by files of another format, with other names.
func (o *office) encode() {
	o.Helper()
	for _, path := range o.files() {
		if from, ok := strings.CutSuffix(path, ".jpg"); ok {
			o.must(os.Remove(path))
			o.must(os.WriteFile(from+".heic", append([]byte("\x00\x00\x00\x18ftypheic"), o.content(5)...), 0o600))
		}
	}
}
