package flow

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// The draw functions make messages as the services send them: empty lists are nil.

func listOf[T any](t *rapid.T, what string, most int, draw func(*rapid.T) T) []T {
	n := rapid.IntRange(0, most).Draw(t, what)
	if n == 0 {
		return nil
	}
	list := make([]T, n)
	for i := range list {
		list[i] = draw(t)
	}
	return list
}

func drawID(t *rapid.T) [16]byte { return [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")) }

// drawBytes returns text of any bytes, like paths and patterns.
func drawBytes(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "usr", "\xff\xfe", "ü", "*.tmp", " "}).Draw(t, "bytes")
}

func drawPath(t *rapid.T) string { return strings.Join(listOf(t, "names", 4, drawBytes), "/") }

func drawPage(t *rapid.T) backup.PageVersion {
	return backup.PageVersion{
		Path: drawPath(t), Key: backup.PageKey(rapid.Int64Min(0).Draw(t, "key")), Inode: rapid.Uint64().Draw(t, "inode"),
		Fingerprint: rapid.SampledFrom([]backup.Fingerprint{{}, {1}, {15: 255}}).Draw(t, "fingerprint"),
		Listing:     rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "listing"),
	}
}

func drawJob(t *rapid.T) backup.Job {
	number := rapid.Int64Range(1, math.MaxInt64).Draw(t, "number")
	return backup.Job{
		Snapshot: drawID(t), Filer: backup.FilerID(rapid.Int64().Draw(t, "filer")), Shard: backup.ShardID(rapid.Int64().Draw(t, "shard")),
		Number: backup.SnapshotNumber(number), Base: backup.SnapshotNumber(rapid.Int64Range(0, number-1).Draw(t, "base")),
		Started: backup.Time{Sec: rapid.Int64().Draw(t, "sec"), Nsec: rapid.Uint32Range(0, 999_999_999).Draw(t, "nsec")},
		Source:  "posix:///srv/" + rapid.StringMatching(`[a-z%0-9]*`).Draw(t, "source"),
		Selection: backup.Selection{
			Exclude: listOf(t, "exclude", 3, drawBytes), ExcludeIfPresent: listOf(t, "exclude if present", 2, drawBytes),
			OneFileSystem: rapid.Bool().Draw(t, "one file system"), ExcludeLargerBytes: rapid.Int64().Draw(t, "larger"),
		},
		FilerName: rapid.SampledFrom([]string{"", "nas1"}).Draw(t, "filer name"), ShardName: rapid.SampledFrom([]string{"", "home"}).Draw(t, "shard name"),
		Root: drawRoot(t), AllowShrink: rapid.Bool().Draw(t, "allow shrink"), NewRoot: rapid.Bool().Draw(t, "new root"),
		Interrupted: rapid.Bool().Draw(t, "interrupted"),
		Snapshots:   rapid.SampledFrom([]string{"", ".snapshot/hourly.*"}).Draw(t, "snapshots"),
		Compare:     backup.Compare(rapid.Uint8Max(uint8(backup.CompareAll)).Draw(t, "compare")),
		Site:        rapid.SampledFrom([]string{"", backup.DefaultSite, "berlin-2"}).Draw(t, "site"), ReadBytesPerSecond: rapid.Int64Min(0).Draw(t, "bytes a second"),
	}
}

// drawRoot returns a root whose names may have any bytes.
func drawRoot(t *rapid.T) backup.Root {
	return backup.Root{
		FileSystem: rapid.SampledFrom([]string{"", "ext4", "fuse.a b"}).Draw(t, "file system"),
		ID:         string(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "root id")), Inode: rapid.Uint64().Draw(t, "root inode"),
		Born: backup.Time{Sec: rapid.Int64().Draw(t, "born"), Nsec: rapid.Uint32Range(0, 999_999_999).Draw(t, "born nanoseconds")},
	}
}

func drawPagesToRead(t *rapid.T) backup.PagesToRead {
	return backup.PagesToRead{Pages: append(listOf(t, "pages", 3, drawPage), drawPage(t)), Mounts: listOf(t, "mounts", 2, drawPath)}
}

func drawChild(t *rapid.T) backup.Child {
	return backup.Child{Directories: append(listOf(t, "directories", 3, drawPath), drawPath(t)), Mounts: listOf(t, "mounts", 2, drawPath)}
}

func drawProblem(t *rapid.T) backup.Problem {
	return backup.Problem{Path: "any \xff/../" + drawPath(t), Op: "open", Err: rapid.StringMatching(`[ -~ü]*`).Draw(t, "error")}
}

func drawCounts(t *rapid.T) (c backup.Counts) {
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.CanInt() {
			f.SetInt(rapid.Int64().Draw(t, v.Type().Field(i).Name))
		} else {
			f.SetFloat(rapid.Float64Range(0, 1e9).Draw(t, v.Type().Field(i).Name))
		}
	}
	return c
}

func drawWalkTask(t *rapid.T) *backup.WalkTask {
	return &backup.WalkTask{
		Job: drawJob(t), ID: backup.TaskID(rapid.Int64().Draw(t, "task")), Attempt: rapid.Int32().Draw(t, "attempt"),
		Generation: rapid.Int32().Draw(t, "generation"), Directories: listOf(t, "directories", 5, drawPath),
		Mounts: listOf(t, "mounts", 2, drawPath), Scarce: rapid.Bool().Draw(t, "scarce"),
	}
}

func drawSliceWalked(t *rapid.T) *backup.SliceWalked {
	return &backup.SliceWalked{
		Snapshot: drawID(t), Task: backup.TaskID(rapid.Int64().Draw(t, "task")), Attempt: rapid.Int32().Draw(t, "attempt"),
		Part: rapid.Int32Min(0).Draw(t, "part"), Last: rapid.Bool().Draw(t, "last"), Run: rapid.Uint64().Draw(t, "run"),
		Source: rapid.SampledFrom([]string{"", "posix:///srv/.snapshot/hourly.0"}).Draw(t, "source"), Root: drawRoot(t),
		Pages: listOf(t, "pages", 3, drawPage),
		Ended: listOf(t, "ended", 3, func(t *rapid.T) backup.PageName {
			return backup.PageName{Path: drawPath(t), Key: backup.PageKey(rapid.Int64Min(0).Draw(t, "key"))}
		}),
		Removed:  listOf(t, "removed", 3, drawPath),
		Batches:  listOf(t, "batches", 3, drawPagesToRead),
		Children: listOf(t, "children", 3, drawChild),
		Counts:   drawCounts(t), Problems: listOf(t, "problems", 3, drawProblem), Failed: rapid.StringMatching(`[a-z ]*`).Draw(t, "failed"),
	}
}

func drawReadBatch(t *rapid.T) *backup.ReadBatch {
	return &backup.ReadBatch{
		Job: drawJob(t), ID: backup.BatchID(rapid.Int64().Draw(t, "batch")), Attempt: rapid.Int32().Draw(t, "attempt"),
		PagesToRead: drawPagesToRead(t),
	}
}

func drawPackStored(t *rapid.T) *backup.PackStored {
	p := &backup.PackStored{Snapshot: drawID(t), Pack: drawID(t)}
	for range rapid.IntRange(0, 10).Draw(t, "chunks") {
		c := backup.ChunkPlace{ID: drawID(t), Length: rapid.Uint32Range(0, 1<<23).Draw(t, "length")}
		if n := len(p.Chunks); n > 0 {
			before := p.Chunks[n-1]
			c.Frame, c.Offset = before.Frame, before.Offset+before.Length
			if rapid.Bool().Draw(t, "next frame") {
				c.Frame, c.Offset = before.Frame+rapid.Uint32Range(1, 3).Draw(t, "frames"), 0
			}
		}
		p.Chunks = append(p.Chunks, c)
	}
	frames := 0
	if n := len(p.Chunks); n > 0 {
		frames = int(p.Chunks[n-1].Frame) + 1
	}
	p.StoredBytes = rapid.Int64Range(1, 1<<40).Draw(t, "bytes besides the frames")
	for range frames + rapid.IntRange(0, 2).Draw(t, "frames without chunks") {
		length := rapid.Uint32().Draw(t, "frame bytes")
		p.FrameBytes, p.StoredBytes = append(p.FrameBytes, length), p.StoredBytes+int64(length)
	}
	if rapid.Bool().Draw(t, "sums") {
		n := pack.SumBytes * (len(p.FrameBytes) + 1)
		p.Sums = rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "sums")
	}
	return p
}

func drawListsStored(t *rapid.T) *backup.ListsStored {
	return &backup.ListsStored{Snapshot: drawID(t), Lists: listOf(t, "lists", 3, func(t *rapid.T) backup.ChunkList {
		chunks := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) backup.ChunkID { return drawID(t) }), 1, 5).Draw(t, "chunks")
		return backup.ChunkList{List: drawID(t), Nested: rapid.Bool().Draw(t, "nested"), Chunks: chunks}
	})}
}

func drawBatchStored(t *rapid.T) *backup.BatchStored {
	return &backup.BatchStored{
		Snapshot: drawID(t), Batch: backup.BatchID(rapid.Int64().Draw(t, "batch")), Attempt: rapid.Int32().Draw(t, "attempt"),
		Pages: listOf(t, "pages", 3, drawPage), ReliesOn: listOf(t, "packs", 3, func(t *rapid.T) backup.PackID { return drawID(t) }),
		Counts: drawCounts(t), Problems: listOf(t, "problems", 3, drawProblem), Failed: rapid.StringMatching(`[a-z ]*`).Draw(t, "failed"),
	}
}

func drawProgress(t *rapid.T) *backup.Progress {
	task := func(t *rapid.T) backup.TaskID { return backup.TaskID(rapid.Int64().Draw(t, "task")) }
	batch := func(t *rapid.T) backup.BatchID { return backup.BatchID(rapid.Int64().Draw(t, "batch")) }
	return &backup.Progress{
		Worker: rapid.StringMatching(`[a-z0-9-]*`).Draw(t, "worker"), Snapshot: drawID(t),
		Instance: rapid.StringMatching(`[A-Za-z0-9]{0,64}`).Draw(t, "instance"),
		Tasks:    listOf(t, "tasks", 3, task), StalledTasks: listOf(t, "stalled tasks", 2, task),
		Batches: listOf(t, "batches", 3, batch), StalledBatches: listOf(t, "stalled batches", 2, batch),
		FilesFound: rapid.Int64().Draw(t, "found"), BytesFound: rapid.Int64().Draw(t, "bytes found"),
		FilesDone: rapid.Int64().Draw(t, "done"), BytesDone: rapid.Int64().Draw(t, "bytes done"), Errors: rapid.Int64().Draw(t, "errors"),
		Path: drawPath(t), Filer: backup.FilerID(rapid.Int64().Draw(t, "filer")),
		Stats: rapid.Int64Min(0).Draw(t, "stats"), StatSeconds: rapid.Float64Range(0, 1e9).Draw(t, "stat seconds"),
		Opens: rapid.Int64Min(0).Draw(t, "opens"), OpenSeconds: rapid.Float64Range(0, 1e9).Draw(t, "open seconds"),
	}
}

// comesBack checks that each message of one kind is the same after encoding and decoding.
func comesBack[T any](t *testing.T, draw func(*rapid.T) *T, encode func(*T) ([]byte, error), decode func([]byte) (*T, error)) {
	t.Run(reflect.TypeFor[T]().Name(), func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			want := draw(t)
			data, err := encode(want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := decode(data)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%v\ngot  %+v\nwant %+v", err, got, want)
			}
		})
	})
}

func TestEveryMessageComesBack(t *testing.T) {
	comesBack(t, drawWalkTask, Walk.encode, Walk.decode)
	comesBack(t, drawSliceWalked, Slices.encode, Slices.decode)
	comesBack(t, drawReadBatch, Read.encode, Read.decode)
	comesBack(t, drawPackStored, Packs.encode, Packs.decode)
	comesBack(t, drawListsStored, Lists.encode, Lists.decode)
	comesBack(t, drawBatchStored, Batches.encode, Batches.decode)
	comesBack(t, drawProgress, encodeProgress, decodeProgress)
}

// A name that is not UTF-8 in the text of an error must not keep a result from being sent.
func TestTextThatIsNotUTF8IsSent(t *testing.T) {
	s := &backup.SliceWalked{Failed: "root \xff", Problems: []backup.Problem{{Path: "a\xff", Op: "open\xff", Err: "no \xff\xfe such file"}}}
	data, err := Slices.encode(s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Slices.decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if want := (backup.Problem{Path: "a\xff", Op: "open\uFFFD", Err: "no \uFFFD such file"}); got.Problems[0] != want || got.Failed != "root \uFFFD" {
		t.Errorf("got %+v, failed %q", got.Problems[0], got.Failed)
	}
}

func TestDecodeRefuses(t *testing.T) {
	id := make([]byte, 16)
	job := func(change func(*bctlv1.Job)) *bctlv1.Job {
		j := &bctlv1.Job{SnapshotId: id, Number: 2, Base: 1}
		change(j)
		return j
	}
	page := func(change func(*bctlv1.Page)) []*bctlv1.Page {
		p := &bctlv1.Page{Path: []byte("a"), Listing: []byte{1}}
		change(p)
		return []*bctlv1.Page{p}
	}
	walk := func(j *bctlv1.Job, dirs ...string) (proto.Message, func([]byte) error) {
		return &bctlv1.WalkTask{Job: j, Directories: bytesOf(dirs)}, decoderOf(Walk)
	}
	read := func(pages []*bctlv1.Page) (proto.Message, func([]byte) error) {
		return &bctlv1.ReadBatch{Job: job(func(*bctlv1.Job) {}), Pages: pages}, decoderOf(Read)
	}
	stored := func(p *bctlv1.PackStored) (proto.Message, func([]byte) error) {
		p.SnapshotId, p.Pack = id, id
		return p, decoderOf(Packs)
	}
	slice := func(s *bctlv1.SliceWalked) (proto.Message, func([]byte) error) {
		s.SnapshotId = id
		return s, decoderOf(Slices)
	}
	lists := func(l ...*bctlv1.ListsStored_List) (proto.Message, func([]byte) error) {
		return &bctlv1.ListsStored{SnapshotId: id, Lists: l}, decoderOf(Lists)
	}
	batch := func(b *bctlv1.BatchStored) (proto.Message, func([]byte) error) {
		b.SnapshotId = id
		return b, decoderOf(Batches)
	}
	type vector func() (proto.Message, func([]byte) error)
	for name, v := range map[string]vector{
		"no job": func() (proto.Message, func([]byte) error) { return walk(nil) },
		"short snapshot id": func() (proto.Message, func([]byte) error) {
			return walk(job(func(j *bctlv1.Job) { j.SnapshotId = id[1:] }))
		},
		"snapshot 0":      func() (proto.Message, func([]byte) error) { return walk(job(func(j *bctlv1.Job) { j.Number = 0 })) },
		"based on itself": func() (proto.Message, func([]byte) error) { return walk(job(func(j *bctlv1.Job) { j.Base = 2 })) },
		"based on -1":     func() (proto.Message, func([]byte) error) { return walk(job(func(j *bctlv1.Job) { j.Base = -1 })) },
		"nanoseconds": func() (proto.Message, func([]byte) error) {
			return walk(job(func(j *bctlv1.Job) { j.StartedNanos = 1e9 }))
		},
		"directory outside":  func() (proto.Message, func([]byte) error) { return walk(job(func(*bctlv1.Job) {}), "a", "../b") },
		"absolute directory": func() (proto.Message, func([]byte) error) { return walk(job(func(*bctlv1.Job) {}), "/etc") },
		"path with a NUL": func() (proto.Message, func([]byte) error) {
			return read(page(func(p *bctlv1.Page) { p.Path = []byte{'a', 0} }))
		},
		"negative key": func() (proto.Message, func([]byte) error) { return read(page(func(p *bctlv1.Page) { p.Key = -1 })) },
		"no listing": func() (proto.Message, func([]byte) error) {
			return read(page(func(p *bctlv1.Page) { p.Listing = nil }))
		},
		"short fingerprint": func() (proto.Message, func([]byte) error) {
			return read(page(func(p *bctlv1.Page) { p.Fingerprint = id[1:] }))
		},
		"pack of no bytes": func() (proto.Message, func([]byte) error) { return stored(&bctlv1.PackStored{}) },
		"ids for no chunk": func() (proto.Message, func([]byte) error) {
			return stored(&bctlv1.PackStored{StoredBytes: 1, ChunkIds: id})
		},
		"frames, no lengths": func() (proto.Message, func([]byte) error) {
			return stored(&bctlv1.PackStored{StoredBytes: 1, ChunkIds: id, Frames: []uint32{0}})
		},
		"frames descend": func() (proto.Message, func([]byte) error) {
			return stored(&bctlv1.PackStored{StoredBytes: 1, ChunkIds: make([]byte, 32), Frames: []uint32{1, 0}, Lengths: []uint32{1, 1}})
		},
		"frame beyond 4 GiB": func() (proto.Message, func([]byte) error) {
			return stored(&bctlv1.PackStored{StoredBytes: 1, ChunkIds: make([]byte, 48), Frames: []uint32{0, 0, 0}, Lengths: []uint32{math.MaxUint32, 1, 1}})
		},
		"chunk in a frame that is not there": func() (proto.Message, func([]byte) error) {
			return stored(&bctlv1.PackStored{StoredBytes: 100, ChunkIds: id, Frames: []uint32{1}, Lengths: []uint32{1}, FrameBytes: []uint32{17}})
		},
		"chunk without a frame": func() (proto.Message, func([]byte) error) {
			return stored(&bctlv1.PackStored{StoredBytes: 100, ChunkIds: id, Frames: []uint32{0}, Lengths: []uint32{1}})
		},
		"frames longer than the pack": func() (proto.Message, func([]byte) error) {
			return stored(&bctlv1.PackStored{StoredBytes: 100, FrameBytes: []uint32{50, 51}})
		},
		"checksums of fewer frames": func() (proto.Message, func([]byte) error) {
			return stored(&bctlv1.PackStored{StoredBytes: 100, FrameBytes: []uint32{50}, Sums: make([]byte, 8)})
		},
		"checksums of a part of a frame": func() (proto.Message, func([]byte) error) {
			return stored(&bctlv1.PackStored{StoredBytes: 100, FrameBytes: []uint32{50}, Sums: make([]byte, 17)})
		},
		"frames much longer than the pack": func() (proto.Message, func([]byte) error) {
			return stored(&bctlv1.PackStored{StoredBytes: 100, FrameBytes: []uint32{math.MaxUint32, math.MaxUint32}})
		},
		"lists of a short snapshot id": func() (proto.Message, func([]byte) error) {
			return &bctlv1.ListsStored{SnapshotId: id[1:]}, decoderOf(Lists)
		},
		"short list": func() (proto.Message, func([]byte) error) {
			return lists(&bctlv1.ListsStored_List{List: id[1:], ChunkIds: id})
		},
		"list of nothing": func() (proto.Message, func([]byte) error) { return lists(&bctlv1.ListsStored_List{List: id}) },
		"list of half a chunk": func() (proto.Message, func([]byte) error) {
			return lists(&bctlv1.ListsStored_List{List: id, ChunkIds: make([]byte, 24)})
		},
		"empty list": func() (proto.Message, func([]byte) error) { return lists(&bctlv1.ListsStored_List{}) },
		"root of a job": func() (proto.Message, func([]byte) error) {
			return walk(job(func(j *bctlv1.Job) { j.Root = "colour=red" }))
		},
		"long root of a job": func() (proto.Message, func([]byte) error) {
			return walk(job(func(j *bctlv1.Job) { j.Root = "type=" + strings.Repeat("x", 1<<16) }))
		},
		"root of a slice": func() (proto.Message, func([]byte) error) { return slice(&bctlv1.SliceWalked{Root: "inode=x"}) },
		"mount outside": func() (proto.Message, func([]byte) error) {
			return &bctlv1.WalkTask{Job: job(func(*bctlv1.Job) {}), Mounts: [][]byte{[]byte("../mnt")}}, decoderOf(Walk)
		},
		"mount of a child outside": func() (proto.Message, func([]byte) error) {
			return slice(&bctlv1.SliceWalked{Children: []*bctlv1.SliceWalked_Child{{Directories: [][]byte{nil}, Mounts: [][]byte{[]byte("/mnt")}}}})
		},
		"mount of a batch outside": func() (proto.Message, func([]byte) error) {
			return slice(&bctlv1.SliceWalked{Batches: []*bctlv1.SliceWalked_Batch{{Pages: page(func(*bctlv1.Page) {}), Mounts: [][]byte{[]byte("/mnt")}}}})
		},
		"mount of pages to read outside": func() (proto.Message, func([]byte) error) {
			return &bctlv1.ReadBatch{Job: job(func(*bctlv1.Job) {}), Mounts: [][]byte{[]byte("a//b")}}, decoderOf(Read)
		},
		"batch of nothing": func() (proto.Message, func([]byte) error) {
			return slice(&bctlv1.SliceWalked{Batches: []*bctlv1.SliceWalked_Batch{{}}})
		},
		"child of nothing": func() (proto.Message, func([]byte) error) {
			return slice(&bctlv1.SliceWalked{Children: []*bctlv1.SliceWalked_Child{{}}})
		},
		"negative part": func() (proto.Message, func([]byte) error) { return slice(&bctlv1.SliceWalked{Part: -1}) },
		"removed outside": func() (proto.Message, func([]byte) error) {
			return slice(&bctlv1.SliceWalked{Removed: [][]byte{[]byte("..")}})
		},
		"ended outside": func() (proto.Message, func([]byte) error) {
			return slice(&bctlv1.SliceWalked{Ended: []*bctlv1.PageName{{Path: []byte("a//b")}}})
		},
		"ended, negative key": func() (proto.Message, func([]byte) error) {
			return slice(&bctlv1.SliceWalked{Ended: []*bctlv1.PageName{{Key: -1}}})
		},
		"child outside": func() (proto.Message, func([]byte) error) {
			return slice(&bctlv1.SliceWalked{Children: []*bctlv1.SliceWalked_Child{{Directories: [][]byte{[]byte(".")}}}})
		},
		"batch without a page": func() (proto.Message, func([]byte) error) {
			return slice(&bctlv1.SliceWalked{Batches: []*bctlv1.SliceWalked_Batch{{Pages: []*bctlv1.Page{{}}}}})
		},
		"no number": func() (proto.Message, func([]byte) error) {
			return slice(&bctlv1.SliceWalked{Counts: &bctlv1.Counts{WalkSeconds: math.NaN()}})
		},
		"infinite": func() (proto.Message, func([]byte) error) {
			return batch(&bctlv1.BatchStored{Counts: &bctlv1.Counts{SealSeconds: math.Inf(1)}})
		},
		"short pack id": func() (proto.Message, func([]byte) error) {
			return batch(&bctlv1.BatchStored{ReliesOn: [][]byte{id, id[1:]}})
		},
	} {
		m, decode := v()
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := decode(data); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func decoderOf[T any](hop Hop[T]) func([]byte) error {
	return func(data []byte) error {
		_, err := hop.decode(data)
		return err
	}
}

// Messages are bounded by MaxMessageBytes; decoding does not expand them to much more.
func TestHostileMessagesAreBounded(t *testing.T) {
	repeat := func(head, field string) []byte {
		return []byte(head + strings.Repeat(field, (MaxMessageBytes-len(head))/len(field)))
	}
	snapshot := "\x0a\x10" + strings.Repeat("s", 16)
	nested := func(head byte, inner string) []byte {
		data := append([]byte(snapshot), head)
		data = binary.AppendUvarint(data, uint64(MaxMessageBytes-100))
		return append(data, strings.Repeat(inner, (MaxMessageBytes-100)/len(inner))...)
	}
	for name, test := range map[string]struct {
		data   []byte
		decode func([]byte) error
	}{
		"pages of nothing":       {repeat(snapshot, "\x32\x00"), decoderOf(Slices)},
		"page names of nothing":  {repeat(snapshot, "\x3a\x00"), decoderOf(Slices)},
		"batches of nothing":     {repeat(snapshot, "\x4a\x00"), decoderOf(Slices)},
		"children of nothing":    {repeat(snapshot, "\x52\x00"), decoderOf(Slices)},
		"problems of nothing":    {repeat(snapshot, "\x62\x00"), decoderOf(Slices)},
		"a batch of empty pages": {nested(0x4a, "\x0a\x00"), decoderOf(Slices)},
		"a child of many roots":  {nested(0x52, "\x0a\x00"), decoderOf(Slices)},
		"frames":                 {nested(0x2a, "\x01"), decoderOf(Packs)},
		"frame lengths":          {nested(0x3a, "\x01"), decoderOf(Packs)},
		"lists of nothing":       {repeat(snapshot, "\x12\x00"), decoderOf(Lists)},
		"lists of a chunk":       {repeat(snapshot, "\x12\x24\x0a\x10"+strings.Repeat("l", 16)+"\x1a\x10"+strings.Repeat("c", 16)), decoderOf(Lists)},
		"too large":              {make([]byte, MaxMessageBytes+1), decoderOf(Walk)},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_ = test.decode(test.data)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 96<<20 {
			t.Errorf("%s: %d bytes took %d MiB", name, len(test.data), got>>20)
		} else {
			t.Logf("%s: %d MiB", name, got>>20)
		}
	}
	if err := decoderOf(Walk)(make([]byte, MaxMessageBytes+1)); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("a message above the limit: %v", err)
	}
}

// Listeners keep reports for a while, so a report is limited to what an honest worker can have in
// progress.
func TestReportsAreBounded(t *testing.T) {
	for name, p := range map[string]*backup.Progress{
		"tasks":           {Tasks: make([]backup.TaskID, maxReported+1)},
		"batches":         {Batches: make([]backup.BatchID, maxReported+1)},
		"stalled tasks":   {StalledTasks: make([]backup.TaskID, maxReported+1)},
		"stalled batches": {StalledBatches: make([]backup.BatchID, maxReported+1)},
		"worker":          {Worker: strings.Repeat("w", maxWorkerBytes+1)},
		"instance":        {Instance: strings.Repeat("i", maxInstanceBytes+1)},
		"other subjects":  {Instance: "a.b"},
		"all subjects":    {Instance: "*"},
		"a second line":   {Instance: "a\r\nPUB"},
		"path":            {Path: strings.Repeat("p", backup.MaxPathBytes+1)},
	} {
		data, err := encodeProgress(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeProgress(data); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// stable checks that a decoded message is the same once encoded and decoded again.
func stable[T any](t *testing.T, data []byte, encode func(*T) ([]byte, error), decode func([]byte) (*T, error)) {
	m, err := decode(data)
	if err != nil {
		if !errors.Is(err, backup.ErrInvalid) {
			t.Fatal(err)
		}
		return
	}
	again, err := encode(m)
	if err != nil {
		t.Fatal(err)
	}
	n, err := decode(again)
	if err != nil || !reflect.DeepEqual(m, n) {
		t.Fatalf("decoded, encoded and decoded: %v\n%+v\n%+v", err, m, n)
	}
}

func FuzzDecode(f *testing.F) {
	add := func(kind uint8, data []byte, err error) {
		if err != nil {
			f.Fatal(err)
		}
		f.Add(kind, data)
	}
	seed := func(kind uint8, draw func(*rapid.T) ([]byte, error)) {
		for example := range 3 {
			add(kind, rapid.Custom(func(t *rapid.T) []byte {
				data, err := draw(t)
				if err != nil {
					f.Fatal(err)
				}
				return data
			}).Example(example), nil)
		}
	}
	seed(0, func(t *rapid.T) ([]byte, error) { return Walk.encode(drawWalkTask(t)) })
	seed(1, func(t *rapid.T) ([]byte, error) { return Slices.encode(drawSliceWalked(t)) })
	seed(2, func(t *rapid.T) ([]byte, error) { return Read.encode(drawReadBatch(t)) })
	seed(3, func(t *rapid.T) ([]byte, error) { return Packs.encode(drawPackStored(t)) })
	seed(4, func(t *rapid.T) ([]byte, error) { return Batches.encode(drawBatchStored(t)) })
	seed(5, func(t *rapid.T) ([]byte, error) { return encodeProgress(drawProgress(t)) })
	seed(6, func(t *rapid.T) ([]byte, error) { return Lists.encode(drawListsStored(t)) })
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		switch kind % 7 {
		case 0:
			stable(t, data, Walk.encode, Walk.decode)
		case 1:
			stable(t, data, Slices.encode, Slices.decode)
		case 2:
			stable(t, data, Read.encode, Read.decode)
		case 3:
			stable(t, data, Packs.encode, Packs.decode)
		case 4:
			stable(t, data, Batches.encode, Batches.decode)
		case 5:
			stable(t, data, encodeProgress, decodeProgress)
		case 6:
			stable(t, data, Lists.encode, Lists.decode)
		}
	})
}
