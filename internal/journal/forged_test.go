package journal

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv/golden"
)

var attempt = backup.PackID{1, 2, 3}

// An opening is a way to open an object and read all of it.
type opening struct {
	name string
	open func(data []byte, trust Trust) error
}

func segmentAs(id backup.SnapshotID, attempt backup.PackID, n int) opening {
	return opening{store.SegmentName(id, attempt, n), func(data []byte, trust Trust) error {
		p, err := OpenSegment(data, id, attempt, n, trust)
		if err != nil {
			return err
		}
		for _, err := range p.Changes(noBase) {
			if err != nil {
				return err
			}
		}
		return nil
	}}
}

func commitAs(id backup.SnapshotID) opening {
	return opening{store.CommitName(id), func(data []byte, trust Trust) error {
		_, problems, err := OpenCommit(data, id, trust)
		if err != nil {
			return err
		}
		for _, err := range problems {
			if err != nil {
				return err
			}
		}
		return nil
	}}
}

func catalogAs(n int64) opening {
	return opening{store.CatalogName(n), func(data []byte, trust Trust) error {
		_, _, err := OpenCatalog(data, n, trust)
		return err
	}}
}

// A genuine object is one that the committers made, of each type.
type genuine struct {
	what string
	own  opening
	data []byte
}

func genuineObjects(t testing.TB, k keys) []genuine {
	s, parts := write(t, k, false, manyPages, manyChanges(25, 400<<10))
	if len(parts) != 2 {
		t.Fatalf("%d parts", len(parts))
	}
	small, part := write(t, k, false, exampleBase(), each(exampleChanges()))
	checkpoint, page := write(t, k, true, backup.PageSet{}, each(exampleChanges()[:2]))
	return []genuine{
		{"first part", segmentAs(snapshot, s.Attempt, 0), parts[0].data},
		{"last part", segmentAs(snapshot, s.Attempt, 1), parts[1].data},
		{"segment", segmentAs(snapshot, small.Attempt, 0), part[0].data},
		{"checkpoint", segmentAs(snapshot, checkpoint.Attempt, 0), page[0].data},
		{"commit record", commitAs(snapshot), encodeCommit(t, k, exampleCommit(), exampleProblems())},
		{"catalog", catalogAs(sequence), encodeCatalog(t, k, exampleCatalog())},
	}
}

// An attacker who can write to the store can make everything except the signature, and can move
// objects. None of this is accepted.
func TestForgeriesAreRefused(t *testing.T) {
	k := newKeys(t)
	forger, elsewhere := k, k
	forger.Signing = seal.NewSigningKey()
	elsewhere.Repository = backup.RepositoryID{9}
	foreign := k.trust()
	foreign.Repository = backup.RepositoryID{9}
	objects := genuineObjects(t, k)
	for _, g := range objects {
		if err := g.own.open(g.data, k.trust()); err != nil {
			t.Fatalf("%s: %v", g.what, err)
		}
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", what, err)
		}
	}
	for _, g := range genuineObjects(t, forger) {
		refused(g.what+" signed by another", g.own.open(g.data, k.trust()))
	}
	for _, g := range genuineObjects(t, elsewhere) {
		refused(g.what+" of another repository", g.own.open(g.data, k.trust()))
		if err := g.own.open(g.data, foreign); err != nil {
			t.Errorf("%s in its own repository: %v", g.what, err)
		}
	}
	others := []opening{
		segmentAs(snapshot, attempt, 0), segmentAs(backup.SnapshotID{1}, attempt, 0), commitAs(backup.SnapshotID{1}), catalogAs(1), catalogAs(sequence + 1),
	}
	for _, g := range objects {
		others = append(others, g.own)
	}
	for _, g := range objects {
		nobody := k.trust()
		nobody.Signer = seal.Signer{}
		refused(g.what+" without a signer", g.own.open(g.data, nobody))
		if err := g.own.open(g.data, Trust{repository, k.Signing.Signer(), newKeys(t).opener}); !errors.Is(err, backup.ErrWrongKey) {
			t.Errorf("%s with another identity: %v", g.what, err)
		}
		for _, o := range others {
			if o.name != g.own.name {
				refused(g.what+" as "+o.name, o.open(g.data, k.trust()))
			}
		}
		for _, more := range [][]byte{{0}, g.data} {
			refused(g.what+", appended to", g.own.open(append(bytes.Clone(g.data), more...), k.trust()))
			refused(g.what+", with bytes before it", g.own.open(append(bytes.Clone(more), g.data...), k.trust()))
		}
	}
}

// The signature covers every byte: each change and each truncation is detected.
func TestDamagedObjects(t *testing.T) {
	k := newKeys(t)
	for _, g := range genuineObjects(t, k) {
		step := 1 + len(g.data)/300
		if len(g.data) > 4<<10 {
			step = len(g.data) / 40
		}
		for i := 0; i < len(g.data); i += step {
			if err := g.own.open(g.data[:i], k.trust()); !errors.Is(err, backup.ErrCorrupt) {
				t.Fatalf("%s cut after %d of %d bytes: %v", g.what, i, len(g.data), err)
			}
			damaged := bytes.Clone(g.data)
			damaged[i] ^= 1 << (i % 8)
			if err := g.own.open(damaged, k.trust()); !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrInvalid) {
				t.Fatalf("%s with a bit of byte %d of %d turned: %v", g.what, i, len(g.data), err)
			}
		}
	}
}

// sealedAs makes an object with the given frames. A header or record that the committers have
// signed, but that is not valid, is still refused.
func sealedAs(t testing.TB, k keys, kind pack.Kind, id backup.PackID, name string, frames ...string) []byte {
	w, err := pack.NewWriter(kind, repository, id, k.Sealer, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if _, err := w.Add(pack.Frame{RawLength: len(f), Body: []byte(f)}); err != nil {
			t.Fatal(err)
		}
	}
	data, err := w.FinishSigned(k.Signing, name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// snapshotJSON returns the minimal valid header of a snapshot.
func snapshotJSON(edits ...string) string {
	text := fmt.Sprintf(`{"id":"%s","shard_key":"%s","number":7,"base":{"number":6,"id":"%s"},"started":"2026-10-01T02:03:04Z"}`,
		snapshot, strings.Repeat("5a", 16), strings.Repeat("aa", 16))
	return strings.NewReplacer(edits...).Replace(text)
}

func TestMalformedSegments(t *testing.T) {
	k := newKeys(t)
	header := func(edits ...string) string {
		text := `{"version":1,"part":0,"last":true,"snapshot":` + snapshotJSON() + `,"content":{"pages":1,"sum":"` + strings.Repeat("0f", 32) + `"}}`
		return strings.NewReplacer(edits...).Replace(text)
	}
	id := snapshot.String()
	for name, test := range map[string]struct {
		frames []string
		want   error
	}{
		"valid":                   {[]string{header(), "\x02\x00\x00"}, nil},
		"header is no JSON":       {[]string{"{"}, backup.ErrCorrupt},
		"header is a list":        {[]string{"[]"}, backup.ErrCorrupt},
		"bytes after the header":  {[]string{header() + "{}"}, backup.ErrCorrupt},
		"no version":              {[]string{"{}"}, backup.ErrInvalid},
		"later version":           {[]string{header(`"version":1`, `"version":3`)}, backup.ErrInvalid},
		"another part":            {[]string{header(`"part":0`, `"part":1`)}, backup.ErrCorrupt},
		"another snapshot":        {[]string{header(id, strings.Repeat("0", 32))}, backup.ErrCorrupt},
		"an id in capitals":       {[]string{header(id, strings.ToUpper(id))}, backup.ErrCorrupt},
		"no number":               {[]string{header(`"number":7,`, ``)}, backup.ErrCorrupt},
		"number 0":                {[]string{header(`"number":7`, `"number":0`)}, backup.ErrCorrupt},
		"based on itself":         {[]string{header(`"number":6`, `"number":7`)}, backup.ErrCorrupt},
		"based on 0":              {[]string{header(`"number":6`, `"number":0`)}, backup.ErrCorrupt},
		"base without id":         {[]string{header(strings.Repeat("aa", 16), "")}, backup.ErrCorrupt},
		"a short shard key":       {[]string{header(strings.Repeat("5a", 16), "5a")}, backup.ErrCorrupt},
		"content in an early one": {[]string{header(`"last":true`, `"last":false`)}, backup.ErrCorrupt},
		"no content in the last":  {[]string{header(`"content"`, `"contents"`)}, backup.ErrCorrupt},
		"content of -1 pages":     {[]string{header(`"pages":1`, `"pages":-1`)}, backup.ErrCorrupt},
		"a short sum":             {[]string{header("0f0f", "0f")}, backup.ErrCorrupt},
		"a sum in capitals":       {[]string{header("0f", "0F")}, backup.ErrCorrupt},
		"checkpoint that ends":    {[]string{header(`"last"`, `"checkpoint":true,"last"`), "\x02\x00\x00"}, backup.ErrCorrupt},
		"unknown change":          {[]string{header(), "\x03\x00\x00"}, backup.ErrCorrupt},
		"change cut short":        {[]string{header(), "\x01\x01a\x00"}, backup.ErrCorrupt},
		"a frame cut short":       {[]string{header(), "\x02", "\x00\x00"}, backup.ErrCorrupt},
		"path leads outside":      {[]string{header(), "\x02\x02..\x00"}, backup.ErrCorrupt},
		"path is absolute":        {[]string{header(), "\x02\x04/etc\x00"}, backup.ErrCorrupt},
		"key is negative":         {[]string{header(), "\x02\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"}, backup.ErrCorrupt},
		"path longer":             {[]string{header(), "\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a\x00"}, backup.ErrCorrupt},
		"listing longer":          {[]string{header(), "\x01\x00\x00" + strings.Repeat("f", 16) + "\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a"}, backup.ErrCorrupt},
	} {
		as := segmentAs(snapshot, attempt, 0)
		data := sealedAs(t, k, pack.KindSegment, attempt, as.name, test.frames...)
		if err := bounded(t, name, data, as, k); !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", name, err, test.want)
		}
	}
}

// bounded opens an object, which must not allocate much more than the object's length.
func bounded(t *testing.T, name string, data []byte, as opening, k keys) error {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := as.open(data, k.trust())
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%s: %d bytes were allocated for an object of %d", name, n, len(data))
	}
	return err
}

func TestMalformedCommits(t *testing.T) {
	k := newKeys(t)
	header := func(edits ...string) string {
		text := `{"version":1,"state":"committed","snapshot":` + snapshotJSON() + `,"segment":{"attempt":"` + attempt.String() +
			`","parts":1},"content":{"pages":1,"sum":"` + strings.Repeat("0f", 32) + `"},"problems":1}`
		return strings.NewReplacer(edits...).Replace(text)
	}
	const line = `{"path":"a","op":"open","error":"no"}` + "\n"
	for name, test := range map[string]struct {
		frames []string
		want   error
	}{
		"valid":                     {[]string{header(), line}, nil},
		"header is no JSON":         {[]string{"null, null"}, backup.ErrCorrupt},
		"later version":             {[]string{header(`"version":1`, `"version":2`), line}, backup.ErrInvalid},
		"another state":             {[]string{header("committed", "running"), line}, backup.ErrCorrupt},
		"no state":                  {[]string{header(`"committed"`, `""`), line}, backup.ErrCorrupt},
		"failed, with content":      {[]string{header("committed", "failed"), line}, backup.ErrCorrupt},
		"failed, with a segment":    {[]string{header("committed", "failed", `"content"`, `"contents"`), line}, backup.ErrCorrupt},
		"committed without content": {[]string{header(`"content"`, `"contents"`), line}, backup.ErrCorrupt},
		"a short sum":               {[]string{header("0f0f", "0f"), line}, backup.ErrCorrupt},
		"another snapshot":          {[]string{header(snapshot.String(), strings.Repeat("0", 32)), line}, backup.ErrCorrupt},
		"a segment of no parts":     {[]string{header(`"parts":1`, `"parts":0`), line}, backup.ErrCorrupt},
		"a short attempt":           {[]string{header(attempt.String(), "0102"), line}, backup.ErrCorrupt},
		"more problems":             {[]string{header(), line + line}, backup.ErrCorrupt},
		"fewer problems":            {[]string{header()}, backup.ErrCorrupt},
		"problems below zero":       {[]string{header(`"problems":1`, `"problems":-1`)}, backup.ErrCorrupt},
		"a problem that is none":    {[]string{header(), "{\n"}, backup.ErrCorrupt},
		"an empty line":             {[]string{header(), "\n"}, backup.ErrCorrupt},
		"a path that is no base64":  {[]string{header(), `{"path":"a","path_b64":"!"}`}, backup.ErrCorrupt},
	} {
		as := commitAs(snapshot)
		data := sealedAs(t, k, pack.KindCommit, backup.PackID(snapshot), as.name, test.frames...)
		if err := bounded(t, name, data, as, k); !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", name, err, test.want)
		}
	}
}

func TestMalformedCatalogs(t *testing.T) {
	k := newKeys(t)
	header := func(edits ...string) string {
		return strings.NewReplacer(edits...).Replace(`{"version":1,"sequence":4660,"filers":1,"shards":0,"policies":0}`)
	}
	const line = `{"filer":{"name":"f","site":"default"}}` + "\n"
	for name, test := range map[string]struct {
		frames []string
		want   error
	}{
		"valid":                    {[]string{header(), line}, nil},
		"a line of another":        {[]string{header(), line + `{"later":{}}`}, nil},
		"a hold of nothing":        {[]string{header(`"policies":0`, `"policies":0,"holds":1`), line + `{"hold":{"id":1}}`}, backup.ErrCorrupt},
		"a hold less":              {[]string{header(`"policies":0`, `"policies":0,"holds":1`), line}, backup.ErrCorrupt},
		"header is no JSON":        {[]string{"x"}, backup.ErrCorrupt},
		"later version":            {[]string{header(`"version":1`, `"version":2`), line}, backup.ErrInvalid},
		"another sequence":         {[]string{header("4660", "4661"), line}, backup.ErrCorrupt},
		"a filer less":             {[]string{header()}, backup.ErrCorrupt},
		"a filer more":             {[]string{header(), line, line}, backup.ErrCorrupt},
		"a shard less":             {[]string{header(`"shards":0`, `"shards":1`), line}, backup.ErrCorrupt},
		"a policy less":            {[]string{header(`"policies":0`, `"policies":1`), line}, backup.ErrCorrupt},
		"a line that is none":      {[]string{header(), "["}, backup.ErrCorrupt},
		"a filer that is a number": {[]string{header(), `{"filer":1}`}, backup.ErrCorrupt},
	} {
		as := catalogAs(sequence)
		data := sealedAs(t, k, pack.KindCatalog, catalogID(sequence), as.name, test.frames...)
		if err := bounded(t, name, data, as, k); !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", name, err, test.want)
		}
	}
}

// FuzzOpen reads objects that the committers have signed, with any header and any records. The
// result is an error, or an object that can be read to its end.
func FuzzOpen(f *testing.F) {
	k := newKeys(f)
	for _, g := range genuineObjects(f, k)[2:] {
		r, err := pack.OpenBytes(g.data, repository, idOf(g), k.opener)
		if err != nil {
			f.Fatal(err)
		}
		frames := [2][]byte{}
		for n, info := range r.Frames() {
			if frames[n], err = r.DecodeFrame(nil, uint32(n), g.data[info.Offset:][:info.SealedLength], nil); err != nil {
				f.Fatal(err)
			}
		}
		for kind := range uint8(3) {
			f.Add(kind, frames[0], frames[1])
		}
	}
	openings := []struct {
		kind pack.Kind
		id   backup.PackID
		as   opening
	}{
		{pack.KindSegment, attempt, segmentAs(snapshot, attempt, 0)}, {pack.KindCommit, backup.PackID(snapshot), commitAs(snapshot)},
		{pack.KindCatalog, catalogID(sequence), catalogAs(sequence)},
	}
	f.Fuzz(func(t *testing.T, kind uint8, header, records []byte) {
		if len(header) == 0 || len(header)+len(records) > pack.MaxFrameRawBytes {
			return
		}
		frames := []string{string(header)}
		if len(records) > 0 {
			frames = append(frames, string(records))
		}
		o := openings[kind%3]
		err := o.as.open(sealedAs(t, k, o.kind, o.id, o.as.name, frames...), k.trust())
		if err != nil && !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("error of no kind: %v", err)
		}
	})
}

// idOf reads the pack id of a genuine object, which is not encrypted.
func idOf(g genuine) backup.PackID { return backup.PackID(g.data[28:44]) }

// FuzzOpenUnsigned reads any bytes: without the signing key nothing is accepted.
func FuzzOpenUnsigned(f *testing.F) {
	k := goldenKeys(f)
	openings := []opening{segmentAs(snapshot, attempt, 0), commitAs(snapshot), catalogAs(sequence)}
	for name := range goldenObjects(f, k) {
		for kind := range uint8(3) {
			f.Add(kind, golden.Read(f, name))
		}
	}
	genuine := map[string]bool{}
	for name := range goldenObjects(f, k) {
		genuine[string(golden.Read(f, name))] = true
	}
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		err := openings[kind%3].open(data, k.trust())
		if err == nil && !genuine[string(data)] {
			t.Error("an object that nobody has signed is believed")
		}
	})
}
