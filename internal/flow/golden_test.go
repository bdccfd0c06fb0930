package flow

import (
	"encoding/hex"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/bctl/bctl/internal/backup"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

var update = flag.Bool("update", false, "write golden files that are missing")

// A golden message is one that a released binary has sent. Its bytes are in testdata/v1 and never
// change, and every later version understands them. A field that is added to a message later comes
// with another golden message that has it.
type goldenMessage struct {
	file   string
	want   any
	encode func() ([]byte, error)
	decode func([]byte) (any, error)
	wire   proto.Message
}

func golden[T any](file string, want *T, encode func(*T) ([]byte, error), decode func([]byte) (*T, error), wire proto.Message) goldenMessage {
	return goldenMessage{
		file: file, want: want, wire: wire,
		encode: func() ([]byte, error) { return encode(want) },
		decode: func(data []byte) (any, error) { return decode(data) },
	}
}

func goldenMessages() []goldenMessage {
	snapshot := backup.SnapshotID{0xa0, 1, 2, 3, 15: 0xaf}
	root := backup.Root{FileSystem: "ext4", ID: "a b\xff", Inode: 2, Born: backup.Time{Sec: 1_700_000_000, Nsec: 5}}
	job := backup.Job{
		Snapshot: snapshot, Filer: 3, Shard: 14, Number: 9, Base: 8, Started: backup.Time{Sec: 1_772_330_645, Nsec: 123_456_789},
		Source: "posix:///srv/home", Snapshots: ".snapshot/hourly.*", Compare: backup.CompareMtime | backup.CompareInode,
		Site: "berlin-2", ReadBytesPerSecond: 100 << 20, Root: root, AllowShrink: true, NewRoot: true, Interrupted: true,
		Selection: backup.Selection{
			Exclude: []string{"*.o", "caf\xe9"}, ExcludeIfPresent: []string{".nobackup"}, OneFileSystem: true, ExcludeLargerBytes: 1 << 40,
		},
	}
	pages := []backup.PageVersion{
		{Path: "caf\xe9/bar", Key: 77, Fingerprint: backup.Fingerprint{0xf0, 15: 0xff}, Inode: 1 << 63, Listing: []byte{1, 0, 2}},
		{Listing: []byte{1}},
	}
	problems := []backup.Problem{{Path: "caf\xe9/locked", Op: "open", Err: "permission denied"}}
	counts := backup.Counts{
		Files: 1, Directories: 2, Bytes: -3, FilesNew: 4, FilesChanged: 5, FilesUnchanged: 6, StatCalls: 7, NewBytes: 8, StoredBytes: 9,
		ReadBytes: 10, Errors: 11, Vanished: 12, Carried: 13, Torn: 14, WalkSeconds: .5, ReadSeconds: 1.5, HashSeconds: 2.5, CompressSeconds: 3.5, SealSeconds: 4.5,
		UploadSeconds: 5.5, CommitSeconds: 6.5,
	}
	pack := backup.PackID{0xb0, 15: 0xbf}
	return []goldenMessage{
		golden("WalkTask", &backup.WalkTask{
			Job: job, ID: 100, Attempt: 2, Generation: 1, Directories: []string{"", "caf\xe9"}, Mounts: []string{"caf\xe9"}, Scarce: true,
		}, Walk.encode, Walk.decode, &bctlv1.WalkTask{}),
		golden("SliceWalked", &backup.SliceWalked{
			Snapshot: snapshot, Task: 100, Attempt: 2, Part: 1, Last: true, Run: 0xfedcba9876543210, Pages: pages,
			Ended: []backup.PageName{{Path: "a", Key: 5}}, Removed: []string{"gone"},
			Batches:  []backup.PagesToRead{{Pages: pages[:1], Mounts: []string{"caf\xe9"}}, {Pages: pages[1:]}},
			Children: []backup.Child{{Directories: []string{"x", "y"}, Mounts: []string{"x"}}, {Directories: []string{"z"}}}, Counts: counts, Problems: problems,
			Source: "posix:///srv/home/.snapshot/hourly.0", Root: root, Failed: "no such directory",
		}, Slices.encode, Slices.decode, &bctlv1.SliceWalked{}),
		golden("ReadBatch", &backup.ReadBatch{Job: job, ID: 200, Attempt: 3, PagesToRead: backup.PagesToRead{Pages: pages, Mounts: []string{"caf\xe9"}}}, Read.encode, Read.decode, &bctlv1.ReadBatch{}),
		golden("PackStored", &backup.PackStored{
			Snapshot: snapshot, Pack: pack, StoredBytes: 32 << 20, FrameBytes: []uint32{700, 1 << 20}, Chunks: []backup.ChunkPlace{
				{ID: backup.ChunkID{1}, Length: 1000}, {ID: backup.ChunkID{2}, Offset: 1000, Length: 24}, {ID: backup.ChunkID{3}, Frame: 1, Length: 1 << 20},
			},
		}, Packs.encode, Packs.decode, &bctlv1.PackStored{}),
		golden("PackStoredWithSums", &backup.PackStored{
			Snapshot: snapshot, Pack: pack, StoredBytes: 900, FrameBytes: []uint32{700}, Sums: []byte("framesumtablesum"), Chunks: []backup.ChunkPlace{{ID: backup.ChunkID{1}, Length: 1000}},
		}, Packs.encode, Packs.decode, &bctlv1.PackStored{}),
		golden("ListsStored", &backup.ListsStored{Snapshot: snapshot, Lists: []backup.ChunkList{
			{List: backup.ChunkID{4}, Chunks: []backup.ChunkID{{1}, {2}}}, {List: backup.ChunkID{5}, Nested: true, Chunks: []backup.ChunkID{{4}}},
		}}, Lists.encode, Lists.decode, &bctlv1.ListsStored{}),
		golden("BatchStored", &backup.BatchStored{
			Snapshot: snapshot, Batch: 200, Attempt: 3, Pages: pages, ReliesOn: []backup.PackID{pack, {0xc0}}, Counts: counts, Problems: problems,
			Failed: "the source snapshot has expired",
		}, Batches.encode, Batches.decode, &bctlv1.BatchStored{}),
		golden("BatchStoredThatJudges", &backup.BatchStored{
			Snapshot: snapshot, Batch: 200, Attempt: 1, Counts: backup.Counts{FilesJudged: 1, FilesRenamed: 2, TypesLost: 3, FilesOpaque: 4},
		}, Batches.encode, Batches.decode, &bctlv1.BatchStored{}),
		golden("Progress", &backup.Progress{
			Worker: "reader-1", Snapshot: snapshot, Tasks: []backup.TaskID{1, 2}, Batches: []backup.BatchID{3}, FilesFound: 4, BytesFound: 5,
			FilesDone: 6, BytesDone: 7, Errors: 8, Path: "caf\xe9", StalledTasks: []backup.TaskID{2}, StalledBatches: []backup.BatchID{3},
			Filer: 3, Stats: 9, StatSeconds: 1.25, Opens: 10, OpenSeconds: 2.25,
		}, encodeProgress, decodeProgress, &bctlv1.Progress{}),
		golden("WalkTaskWithNames", &backup.WalkTask{
			Job: backup.Job{Snapshot: snapshot, Filer: 3, Shard: 14, FilerName: "café", ShardName: "home", Number: 1, Started: job.Started, Source: job.Source}, ID: 1, Attempt: 1, Directories: []string{""},
		}, Walk.encode, Walk.decode, &bctlv1.WalkTask{}),
		golden("ProgressOfAnInstance", &backup.Progress{Worker: "walker-1", Instance: "CUL3AJWKI6GODSNQQSXHX3HSSO", Snapshot: snapshot, Tasks: []backup.TaskID{1}},
			encodeProgress, decodeProgress, &bctlv1.Progress{}),
		goldenWire("Service", &bctlv1.Service{
			Instance: "CUL3AJWKI6GODSNQQSXHX3HSSO", Name: "café-1", Version: "v1.2.0", StartedSeconds: 1_772_330_645, Ready: true, Reason: "index: away",
			Leads: true, Draining: true, Drained: true, Tasks: 1, Batches: 2, Stalled: 3, EntriesPerSecond: 4.5, BytesPerSecond: 5.5,
			ClockKnown: true, ClockAheadSeconds: -6.5, Stops: true,
		}),
		goldenWire("ServiceThatReads", &bctlv1.Service{Instance: "A", Batches: 2, Reading: []*bctlv1.Reading{{SnapshotId: snapshot[:], BatchesDone: 1.25, ReadBytes: 70_000}}, HandedBack: 12, HandedBackWhy: "is it mounted?"}),
		goldenWire("ServiceThatHandsBack", &bctlv1.Service{Instance: "A", HandBacks: []*bctlv1.HandBack{{Why: "is it mounted?", Times: 12, Unseen: true, SnapshotIds: [][]byte{snapshot[:]}}}}),
		goldenWire("RosterKept", &bctlv1.Roster{Last: true, KeptSeconds: 2.5}),
		goldenWire("ServiceOfLate", &bctlv1.Service{Instance: "A", Batches: 2, Reading: []*bctlv1.Reading{{
			SnapshotId: snapshot[:], RecentSeconds: 60, RecentFiles: 3, RecentBytes: 900_000, RecentBatches: 4.5, RecentHeldSeconds: 12.25,
		}}}),
		goldenWire("ServiceThatSchedules", &bctlv1.Service{Instance: "A", Schedules: true, MaxRunning: 64, MaxRunningPerFiler: 8}),
		goldenWire("ServiceOfFormerRecipients", &bctlv1.Service{Instance: "A", OtherRecipients: true}),
		goldenWire("Roster", &bctlv1.Roster{Services: []*bctlv1.Service{
			{Instance: "CUL3AJWKI6GODSNQQSXHX3HSSO", Role: "walker", Site: "berlin-2", SilentSeconds: 7.5, Gone: true}, {Instance: "A", Role: "committer"},
		}, Last: true}),
		goldenWire("Drain", &bctlv1.Drain{Undo: true, By: "alice on admin1"}),
	}
}

// goldenWire returns a golden message that has no other form in this program.
func goldenWire(file string, want proto.Message) goldenMessage {
	empty := want.ProtoReflect().Type()
	return goldenMessage{
		file: file, want: want, wire: empty.New().Interface(),
		encode: func() ([]byte, error) { return marshal(want) },
		decode: func(data []byte) (any, error) {
			m := empty.New().Interface()
			if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, m); err != nil {
				return nil, err
			}
			if proto.Equal(m, want) {
				return want, nil
			}
			return m, nil
		},
	}
}

// goldenBytes reads the bytes of a message. With -update it writes a missing file, and never
// overwrites an existing one.
func goldenBytes(t *testing.T, g goldenMessage) []byte {
	t.Helper()
	path := filepath.Join("testdata", "v1", g.file+".hex")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && *update {
		data, err := g.encode()
		if err != nil {
			t.Fatal(err)
		}
		var lines strings.Builder
		for len(data) > 0 {
			n := min(len(data), 32)
			lines.WriteString(hex.EncodeToString(data[:n]) + "\n")
			data = data[n:]
		}
		if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		text = []byte(lines.String())
	} else if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return data
}

// Later versions understand everything that was ever sent.
func TestGoldenMessages(t *testing.T) {
	for _, g := range goldenMessages() {
		data := goldenBytes(t, g)
		got, err := g.decode(data)
		if err != nil || !reflect.DeepEqual(got, g.want) {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", g.file, err, got, g.want)
		}
	}
}

// Each field of each message occurs in a golden message.
func TestGoldenMessagesHaveAllFields(t *testing.T) {
	have := map[protoreflect.FullName]bool{}
	var note func(m protoreflect.Message)
	note = func(m protoreflect.Message) {
		m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			have[field.FullName()] = true
			switch {
			case field.Message() == nil:
			case field.IsList():
				for i := range v.List().Len() {
					note(v.List().Get(i).Message())
				}
			default:
				note(v.Message())
			}
			return true
		})
	}
	for _, g := range goldenMessages() {
		if err := proto.Unmarshal(goldenBytes(t, g), g.wire); err != nil {
			t.Fatalf("%s: %v", g.file, err)
		}
		note(g.wire.ProtoReflect())
	}
	var want func(messages protoreflect.MessageDescriptors)
	want = func(messages protoreflect.MessageDescriptors) {
		for i := range messages.Len() {
			fields := messages.Get(i).Fields()
			for j := range fields.Len() {
				if name := fields.Get(j).FullName(); !have[name] {
					t.Errorf("no golden message has %s", name)
				}
			}
			want(messages.Get(i).Messages())
		}
	}
	for _, file := range []protoreflect.FileDescriptor{
		bctlv1.File_bctl_v1_job_proto, bctlv1.File_bctl_v1_walk_proto, bctlv1.File_bctl_v1_read_proto, bctlv1.File_bctl_v1_commit_proto,
		bctlv1.File_bctl_v1_service_proto,
	} {
		want(file.Messages())
	}
}

// Fields that a newer sender has added are ignored, in the message and in its parts.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	// Fields 1130, bytes, and 1131, a number.
	unknown := protoreflect.RawFields("\xd2\x46\x03new\xd8\x46\x07")
	var add func(m protoreflect.Message)
	add = func(m protoreflect.Message) {
		m.SetUnknown(unknown)
		m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch {
			case field.Message() == nil:
			case field.IsList():
				for i := range v.List().Len() {
					add(v.List().Get(i).Message())
				}
			default:
				add(v.Message())
			}
			return true
		})
	}
	for _, g := range goldenMessages() {
		data := goldenBytes(t, g)
		if err := proto.Unmarshal(data, g.wire); err != nil {
			t.Fatal(err)
		}
		add(g.wire.ProtoReflect())
		newer, err := proto.Marshal(g.wire)
		if err != nil {
			t.Fatal(err)
		}
		got, err := g.decode(newer)
		if err != nil || !reflect.DeepEqual(got, g.want) || len(newer) < len(data)+len(unknown) {
			t.Errorf("%s: %d bytes instead of %d: %v\ngot  %+v\nwant %+v", g.file, len(newer), len(data), err, got, g.want)
		}
	}
}
