package listing

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
)

// files returns n files with names like those of a program, sorted.
func files(n int) []backup.Entry {
	entries := make([]backup.Entry, n)
	for i := range entries {
		entries[i] = backup.Entry{Name: fmt.Sprintf("f%07d.txt", i), Kind: backup.File}
	}
	return entries
}

// pages cuts a whole directory as a walk does, and returns the names of each page by its key.
func pages(entries []backup.Entry) map[backup.PageKey]string {
	out := map[backup.PageKey]string{}
	for key := backup.PageKey(0); ; key = Key(entries[0].Name) {
		n := Cut(entries, false)
		var names strings.Builder
		for i := range entries[:n] {
			names.WriteString(entries[i].Name + "\n")
		}
		out[key] = names.String()
		if entries = entries[n:]; len(entries) == 0 {
			return out
		}
	}
}

func TestSmallDirectoriesAreOnePage(t *testing.T) {
	for _, n := range []int{0, 1, minPageEntries} {
		if got := Cut(files(n), false); got != n {
			t.Errorf("a directory of %d entries is cut after %d", n, got)
		}
	}
}

func TestCutsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		long := rapid.SampledFrom([]int{0, 100, 1000}).Draw(t, "name bytes")
		target := rapid.SampledFrom([]int{0, 4000, maxTarget}).Draw(t, "target bytes")
		n := rapid.IntRange(1, 6000).Draw(t, "entries")
		entries := files(n)
		for i := range entries {
			entries[i].Name += strings.Repeat("x", long)
			if i%7 == 3 {
				entries[i].Target = strings.Repeat("t", target)
			}
		}
		for rest := entries; len(rest) > 0; {
			cut := Cut(rest, false)
			if cut < 1 || cut > maxPageEntries {
				t.Fatalf("a page of %d entries", cut)
			}
			bytes := 0
			for i := range rest[:cut-1] {
				bytes += estimate(&rest[i])
			}
			if bytes >= maxPageBytes {
				t.Fatalf("a page of %d entries has %d bytes before its last", cut, bytes)
			}
			if rest = rest[cut:]; len(rest) > 0 && cut < minPageEntries && bytes+estimate(&entries[len(entries)-len(rest)-1]) < maxPageBytes/2 {
				t.Fatalf("a page of %d entries and %d bytes is not the last", cut, bytes)
			}
		}
	})
}

// The beginning of a directory is cut in the same way as the whole directory.
func TestCutOfABeginningIsThatOfTheWhole(t *testing.T) {
	entries := files(20_000)
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.IntRange(0, len(entries)-1).Draw(t, "from")
		to := rapid.IntRange(from, min(len(entries), from+4*maxPageEntries)).Draw(t, "to")
		part, whole := Cut(entries[from:to], true), Cut(entries[from:], false)
		if part != 0 && part != whole {
			t.Fatalf("a beginning of %d entries is cut at %d, the whole at %d", to-from, part, whole)
		}
		bytes := 0
		for i := range entries[from:to] {
			bytes += estimate(&entries[from+i])
		}
		if part == 0 && (to-from > maxPageEntries || bytes >= maxPageBytes+estimate(&entries[from])) {
			t.Fatalf("no cut within %d entries of %d bytes, the whole is cut at %d", to-from, bytes, whole)
		}
	})
}

// Adding or removing a file changes the page that contains it, and hardly ever another.
func TestOneFileChangesOnePage(t *testing.T) {
	const trials = 60
	random := rand.New(rand.NewPCG(1, 2))
	entries := files(20_000)
	before := pages(entries)
	changed := 0
	for range trials {
		at := random.IntN(len(entries))
		more := slices.Insert(slices.Clone(entries), at, backup.Entry{Name: entries[max(at, 1)-1].Name + "~", Kind: backup.File})
		one := 0
		after := pages(Sort(more))
		for key, names := range after {
			if before[key] != names {
				one++
			}
		}
		if one == 0 || one > 8 {
			t.Errorf("one more file changed %d of %d pages", one, len(after))
		}
		changed += one
	}
	if mean := float64(changed) / trials; mean > 1.1 {
		t.Errorf("one more file changes %.2f pages on average", mean)
	} else {
		t.Logf("one more file changes %.2f of %d pages on average", mean, len(before))
	}
}

func TestPagesAreNeitherFewNorMany(t *testing.T) {
	n := len(pages(files(200_000)))
	if mean := 200_000 / n; mean < 600 || mean > 1300 {
		t.Errorf("pages of %d entries on average", mean)
	} else {
		t.Logf("pages of %d entries on average", mean)
	}
}

// The hash of names decides where pages begin and what their keys are, so it is part of the format.
func TestKeysNeverChange(t *testing.T) {
	for name, want := range map[string]backup.PageKey{
		"a":            1652540847281934,
		"f0000001.txt": 2312345162265228,
		"ü":            527552858354698,
		"\xff\xfe":     1948869568158492,
		"two\nlines":   4730032908548667,
	} {
		if got := Key(name); got != want {
			t.Errorf("the key of %q is %d, and was %d", name, got, want)
		}
	}
}

func TestKeysArePositive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String().Draw(t, "name")
		if key := Key(name); key <= 0 || key > 1<<53 {
			t.Fatalf("the key of %q is %d", name, key)
		}
	})
}

func TestCutsFollowFromTheNames(t *testing.T) {
	entries := files(5000)
	want := pages(entries)
	for i := range entries {
		e := &entries[i]
		e.Inode, e.Size, e.Flags, e.Mtime = math.MaxUint64, math.MaxInt64, backup.Racy, backup.Time{Sec: -1}
		e.Xattrs = []backup.Xattr{{Name: "user.large", Value: make([]byte, 500)}}
		e.Content.Refs = make([]backup.Ref, 3)
	}
	got := pages(entries)
	if len(got) != len(want) {
		t.Errorf("%d pages with attributes, %d without", len(got), len(want))
	}
	for key := range want {
		if got[key] != want[key] {
			t.Errorf("page %d begins elsewhere once its entries have attributes", key)
		}
	}
}

func TestSort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix := rapid.SampledFrom([]string{"", "f", "a common beginning "}).Draw(t, "prefix")
		alphabet := rapid.SampledFrom([]string{"ab", "ab\x01\xff./", "0123456789"}).Draw(t, "alphabet")
		names := rapid.SliceOf(rapid.StringOfN(rapid.RuneFrom([]rune(alphabet)), 0, 12, -1)).Draw(t, "names")
		entries := make([]backup.Entry, len(names))
		for i, name := range names {
			entries[i] = backup.Entry{Name: prefix + name, Inode: uint64(i)}
		}
		want := slices.Clone(entries)
		slices.SortStableFunc(want, func(a, b backup.Entry) int { return cmp.Compare(a.Name, b.Name) })
		want = slices.CompactFunc(want, func(a, b backup.Entry) bool { return a.Name == b.Name })
		got := Sort(entries)
		same := func(a, b backup.Entry) bool { return a.Name == b.Name && a.Inode == b.Inode }
		if !slices.EqualFunc(got, want, same) {
			t.Fatalf("%q is sorted as %v, not %v", names, inodes(got), inodes(want))
		}
	})
}

func inodes(entries []backup.Entry) (out []uint64) {
	for i := range entries {
		out = append(out, entries[i].Inode)
	}
	return out
}

func TestSortAllocatesNothing(t *testing.T) {
	sorted, shuffled := files(1000), files(1000)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	work := make([]backup.Entry, 1000)
	if n := testing.AllocsPerRun(100, func() { Sort(sorted) }); n != 0 {
		t.Errorf("%v allocations to sort what is sorted", n)
	}
	if n := testing.AllocsPerRun(100, func() { copy(work, shuffled); Sort(work) }); n > 0.5 && !raceDetector {
		t.Errorf("%v allocations to sort", n)
	}
}

// Users can choose file names with equal hashes. Their pages still get different keys, and the same
// keys each time.
func TestKeysAreUnique(t *testing.T) {
	for range 2 {
		var keys Keys
		if key := keys.Next("a"); key != Key("a") {
			t.Errorf("key %d, want that of the name, %d", key, Key("a"))
		}
		for i := range backup.PageKey(3) {
			if key := keys.Next("a"); key != Key("a")+1+i {
				t.Errorf("key %d, want %d", key, Key("a")+1+i)
			}
		}
	}
}
