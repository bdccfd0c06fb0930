package parity

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
)

var update = flag.Bool("update", false, "write golden files")

// A memory is a store in memory.
type memory map[string][]byte

func (m memory) GetRange(_ context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	data, ok := m[name]
	if !ok {
		return dst, backup.ErrNotFound
	}
	if offset+length > int64(len(data)) {
		return dst, backup.ErrCorrupt
	}
	return append(dst, data[offset:offset+length]...), nil
}

func (m memory) Stat(_ context.Context, name string) (int64, error) {
	if _, ok := m[name]; !ok {
		return 0, backup.ErrNotFound
	}
	return int64(len(m[name])), nil
}

// A world is a store with members of a group that is not made yet.
type world struct {
	testing.TB
	memory
	members []Member
	data    map[string][]byte // as it was put
}

func newWorld(t testing.TB, sizes ...int) *world {
	w := &world{TB: t, memory: memory{}, data: map[string][]byte{}}
	random := rand.NewChaCha8([32]byte{byte(len(sizes))})
	for n, size := range sizes {
		m := Member{Snapshot: backup.SnapshotID{1}, Object: backup.PackID{2, byte(n)}, Bytes: int64(size)}
		b := make([]byte, size)
		_, _ = random.Read(b)
		w.put(m.Name(), b)
		w.members = append(w.members, m)
	}
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) put(name string, data []byte) {
	w.Helper()
	w.memory[name], w.data[name] = data, bytes.Clone(data)
}

func (w *world) make(parity int) Group {
	w.Helper()
	g, objects, err := Make(context.Background(), w, backup.RepositoryID{3}, w.members, parity)
	w.must(err)
	for n, data := range objects {
		w.put(g.Name(n), data)
		if int64(len(data)) != g.ObjectBytes() {
			w.Fatalf("%d bytes instead of %d", len(data), g.ObjectBytes())
		}
	}
	return g
}

// damage damages an object in one of the ways.
func (w *world) damage(name, how string) {
	w.Helper()
	data := bytes.Clone(w.data[name])
	switch how {
	case "deleted":
		delete(w.memory, name)
		return
	case "truncated":
		data = data[:len(data)*2/3]
	case "longer":
		data = append(data, 0)
	case "bit flipped":
		data[len(data)/2] ^= 8
	}
	w.memory[name] = data
}

var damages = []string{"deleted", "truncated", "longer", "bit flipped"}

// wantRestored restores a group of which the objects in known are known to be damaged, and all in
// damaged are.
func (w *world) wantRestored(g *Group, known, damaged map[string]bool) {
	w.Helper()
	got, err := g.Restore(context.Background(), w, known)
	w.must(err)
	if len(got) < len(known) {
		w.Fatalf("%d objects instead of %d", len(got), len(known))
	}
	for name, data := range got {
		if !damaged[name] || !bytes.Equal(data, w.data[name]) {
			w.Errorf("%s: %d bytes, which are not the %d lost ones", name, len(data), len(w.data[name]))
		}
		w.memory[name] = data
	}
	for _, name := range g.Names() {
		if err := g.Check(context.Background(), w, name); err != nil && (known[name] || !damaged[name]) {
			w.Errorf("%s after the repair: %v", name, err)
		}
	}
}

// Any two objects of a group come back byte for byte, however they are damaged, and whether or not
// that was known before.
func TestAnyTwoComeBack(t *testing.T) {
	w := newWorld(t, stripeBytes+17, stripeBytes, 1, 5000)
	g := w.make(2)
	names := g.Names()
	for i, one := range names {
		for j, other := range names[:i+1] {
			for n, how := range damages {
				damaged := map[string]bool{one: true, other: true}
				w.damage(one, how)
				if one != other {
					w.damage(other, damages[(n+i+j)%len(damages)])
				}
				w.wantRestored(&g, map[string]bool{one: true}, damaged)
				w.wantRestored(&g, damaged, damaged)
			}
		}
	}
}

// An object is verified on its own: of its bytes and its name, none may differ.
func TestVerify(t *testing.T) {
	w := newWorld(t, 9000, 8000)
	g := w.make(2)
	name := g.Name(1)
	verify := func() error { return Verify(w.memory[name], name, g.Repository) }
	w.must(verify())
	for _, how := range damages[1:] {
		w.damage(name, how)
		if err := verify(); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v", how, err)
		}
		w.memory[name] = w.data[name]
	}
	if err := Verify(w.memory[name], g.Name(0), g.Repository); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("another name: %v", err)
	}
	if err := Verify(w.memory[name], name, backup.RepositoryID{1}); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("another repository: %v", err)
	}
}

// Three of a group are too many: that is an error, and nothing is returned.
func TestThreeAreTooMany(t *testing.T) {
	for _, how := range damages {
		w := newWorld(t, 9000, 8000, 7000, 9000)
		g := w.make(2)
		for _, n := range []int{0, 2, 5} {
			w.damage(g.Names()[n], how)
		}
		for n := range 6 {
			got, err := g.Restore(t.Context(), w, map[string]bool{g.Names()[n]: true})
			if !errors.Is(err, ErrTooMany) && n != 4 || len(got) > 0 {
				t.Errorf("%s: %d objects, %v", how, len(got), err)
			}
		}
	}
}

// Whatever the sizes are, and how many parity objects there are: as many as these come back.
func TestLayouts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parity := rapid.IntRange(1, MaxParity).Draw(t, "parity")
		sizes := rapid.SliceOfN(rapid.IntRange(1, 3000), 1, MaxMembers/4).Draw(t, "sizes")
		s := memory{}
		var members []Member
		for n, size := range sizes {
			m := Member{Object: backup.PackID{byte(n), 1}, Bytes: int64(size)}
			members = append(members, m)
			s[m.Name()] = bytes.Repeat([]byte{byte(n + size)}, size)
		}
		g, objects, err := Make(context.Background(), s, backup.RepositoryID{}, members, parity)
		if err != nil {
			t.Fatal(err)
		}
		was := map[string][]byte{}
		for n, data := range objects {
			s[g.Name(n)], was[g.Name(n)] = data, data
		}
		for i := range members {
			was[members[i].Name()] = bytes.Repeat([]byte{byte(i + sizes[i])}, sizes[i])
		}
		lost := map[string]bool{}
		for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(was)-1), 1, min(parity, len(was)), rapid.ID[int]).Draw(t, "lost") {
			lost[g.Names()[i]] = true
			delete(s, g.Names()[i])
		}
		got, err := g.Restore(context.Background(), s, lost)
		if err != nil || len(got) != len(lost) {
			t.Fatalf("%d of %d objects, %v", len(got), len(lost), err)
		}
		for name, data := range got {
			if !bytes.Equal(data, was[name]) {
				t.Fatalf("%s is another one", name)
			}
		}
	})
}

// A member that has another digest than it had, or another length, gets no new group.
func TestBadMembersAreRefused(t *testing.T) {
	for _, how := range damages {
		w := newWorld(t, 3000, 4000)
		g := w.make(1)
		w.members = g.Members
		w.damage(w.members[1].Name(), how)
		_, _, err := Make(t.Context(), w, g.Repository, w.members, 1)
		if bad, is := errors.AsType[*BadMemberError](err); !is || bad.Member != w.members[1] {
			t.Errorf("%s: %v", how, err)
		}
	}
}

// The description comes back from each parity object, and each damage to it is found.
func TestDescriptions(t *testing.T) {
	w := newWorld(t, 3000, 4000, 5)
	g := w.make(2)
	for n := range g.Bodies {
		data := w.data[g.Name(n)]
		got, number, err := Parse(data)
		w.must(err)
		if fmt.Sprint(got) != fmt.Sprint(g) || number != n {
			t.Errorf("%+v", got)
		}
		w.must(g.CheckDescription(data, n))
		if g.CheckDescription(data, 1-n) == nil {
			t.Error("it is that of both objects")
		}
		size := int(DescriptionBytes(3, 2))
		for at := range size {
			damaged := bytes.Clone(data)
			damaged[at] ^= 1
			if _, _, err := Parse(damaged); err == nil || g.CheckDescription(damaged, n) == nil {
				t.Errorf("a flipped bit of byte %d is not found", at)
			}
			if _, _, err := Parse(data[:at]); err == nil {
				t.Errorf("%d bytes of a description are taken for all", at)
			}
		}
	}
}

func TestParseLayout(t *testing.T) {
	for text, want := range map[string]Layout{"20+2": {20, 2}, "1+1": {1, 1}, "120+16": {120, 16}} {
		if got, err := ParseLayout(text); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "20", "20+", "+2", "0+1", "20+0", "2+3", "121+2", "120+17", "020+2", "20 + 2", "-20+2", "99999999999999999999+2"} {
		if got, err := ParseLayout(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// The golden group never changes: what was computed from it once is computed for ever.
func TestGolden(t *testing.T) {
	dir := filepath.Join("testdata", "v1")
	w := newWorld(t)
	names := []string{"member-0", "member-1", "member-2", "parity-0", "parity-1"}
	if *update {
		w = newWorld(t, 700, 512, 9)
		g := w.make(2)
		for i, name := range g.Names() {
			w.must(os.WriteFile(filepath.Join(dir, names[i]), w.data[name], 0o600))
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "parity-1"))
	w.must(err)
	g, _, err := Parse(data)
	w.must(err)
	for i, name := range g.Names() {
		data, err := os.ReadFile(filepath.Join(dir, names[i]))
		w.must(err)
		w.put(name, data)
	}
	for _, lost := range [][2]int{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {0, 4}} {
		damaged := map[string]bool{g.Names()[lost[0]]: true, g.Names()[lost[1]]: true}
		for name := range damaged {
			w.damage(name, "deleted")
		}
		w.wantRestored(&g, damaged, damaged)
	}
	// The page's formula gives the same bodies.
	head := DescriptionBytes(len(g.Members), len(g.Bodies))
	for n := range g.Bodies {
		body := make([]byte, g.bodyBytes())
		for i := range g.Members {
			for at, b := range w.data[g.Members[i].Name()] {
				body[at] ^= product(inverse(byte(len(g.Members)+n)^byte(i)), b)
			}
		}
		if !bytes.Equal(body, w.data[g.Name(n)][head:]) {
			t.Errorf("body %d is not that of docs/formats/parity.md", n)
		}
	}
}

func product(a, b byte) (p byte) {
	for ; b > 0; b >>= 1 {
		if b&1 == 1 {
			p ^= a
		}
		carry := a&0x80 != 0
		if a <<= 1; carry {
			a ^= 0x1d
		}
	}
	return p
}

func inverse(a byte) byte {
	for b := range 256 {
		if product(a, byte(b)) == 1 {
			return byte(b)
		}
	}
	return 0
}

// No bytes make Parse panic, and what it reads is what Describe writes.
func FuzzParse(f *testing.F) {
	w := newWorld(f, 300, 20)
	g := w.make(2)
	f.Add(w.data[g.Name(0)])
	f.Add(w.data[g.Name(1)])
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, number, err := Parse(data)
		if err != nil {
			if !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrInvalid) {
				t.Fatal(err)
			}
			// With the right checksum, the rest is reached.
			if len(data) < headerBytes {
				return
			}
			size := DescriptionBytes(int(data[12])|int(data[13])<<8, int(data[10]))
			if size > MaxDescriptionBytes || size > int64(len(data)) {
				return
			}
			sum := DigestOf(data[:size-digestBytes])
			data = append(bytes.Clone(data[:size-digestBytes]), sum[:]...)
			if g, number, err = Parse(data); err != nil {
				return
			}
		}
		if !bytes.HasPrefix(data, g.Describe(number)) {
			t.Fatalf("%x is written as %x", data, g.Describe(number))
		}
	})
}

func BenchmarkMake(b *testing.B) {
	sizes := make([]int, 20)
	for i := range sizes {
		sizes[i] = 4 << 20
	}
	w := newWorld(b, sizes...)
	b.SetBytes(80 << 20)
	for b.Loop() {
		if _, _, err := Make(b.Context(), w, backup.RepositoryID{}, w.members, 2); err != nil {
			b.Fatal(err)
		}
	}
}
