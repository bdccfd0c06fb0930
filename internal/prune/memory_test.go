package prune_test

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/prune"
)

// many is a shard with many chunks: each version has some of the chunks of the one before, and some
// that are new.
type many struct {
	*world
	directories int // of a snapshot
	packs       int // chunks of a pack
	next        int
}

const chunksOfDirectory = 200

func manyID(n int) backup.ChunkID {
	sum := blake3.Sum256(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	return backup.ChunkID(sum[:16])
}

// takeSnapshot makes a snapshot of which the given directories are new.
func (m *many) takeSnapshot(from, to int) *snapshot {
	m.Helper()
	s := m.shards[0]
	m.begin(s)
	r := s.running
	tasks, err := m.x.ClaimTasks(m.ctx, m.claim(r))
	m.must(err)
	result := &backup.SliceWalked{Snapshot: r.ID, Task: tasks[0].ID, Attempt: tasks[0].Attempt, Last: true}
	var ids []backup.ChunkID
	for d := from; d < to; d++ {
		p := backup.Page{}
		e := backup.Entry{Name: "file", Kind: backup.File}
		for range chunksOfDirectory {
			id := manyID(m.next)
			m.next++
			ids = append(ids, id)
			e.Size++
			e.Content.Refs = append(e.Content.Refs, backup.Ref{Chunk: id, Length: 1, Span: 1})
		}
		p.Entries = []backup.Entry{e}
		data, err := listing.Encode(nil, &p)
		m.must(err)
		version := page(fmt.Sprint(d%m.directories), "")
		version.Fingerprint[0], version.Listing = byte(m.next), data
		version.Fingerprint[1], version.Fingerprint[2] = byte(m.next>>8), byte(m.next>>16)
		result.Pages = append(result.Pages, version)
	}
	var results []index.Result
	for len(ids) > 0 {
		n := min(m.packs, len(ids))
		p := &backup.PackStored{Snapshot: r.ID, Pack: m.newPackID(), StoredBytes: int64(n), FrameBytes: []uint32{1}}
		for _, id := range ids[:n] {
			p.Chunks = append(p.Chunks, backup.ChunkPlace{ID: id, Length: 1})
		}
		results = append(results, index.Result{Pack: p})
		ids = ids[n:]
	}
	_, err = m.x.Apply(m.ctx, append(results, index.Result{Slice: result}))
	m.must(err)
	return m.finish(s)
}

func (m *many) run(memory int64, dry bool) prune.Summary {
	m.Helper()
	m.passes++
	result, err := prune.Run(m.ctx, prune.Options{
		Index: m.x, Store: m.s, Holder: fmt.Sprint("pass ", m.passes), Log: slog.New(slog.DiscardHandler), MemoryBytes: memory, DryRun: dry,
	})
	m.must(err)
	return result
}

// However small the memory, the same packs are deleted.
func TestMemory(t *testing.T) {
	m := &many{world: newWorld(t, openSQLite(t), 1), directories: 50, packs: 300}
	first := m.takeSnapshot(0, 50)
	m.takeSnapshot(0, 20)
	m.takeSnapshot(10, 50)
	m.forget(m.shards[0], first)
	want := m.run(0, true)
	if want.Packs != 13 || want.Chunks != 13*300 || want.KeptBytes != 22_000-13*300 || want.Unused != 0 {
		t.Fatalf("it would delete %+v", want)
	}
	for _, memory := range []int64{1 << 20, 40 << 10, 10 << 10, 1 << 10} {
		if got := m.run(memory, true); got != want {
			t.Errorf("with %d bytes: %+v, want %+v", memory, got, want)
		}
	}
	got := m.run(10<<10, false)
	want.Versions = got.Versions
	want.Snapshots = got.Snapshots
	want.Requests = prune.Requests{Deletes: 1, Packs: 1}
	if got != want {
		t.Errorf("it deleted %+v, want %+v", got, want)
	}
}

var benchChunks = flag.Int("chunks", 1_000_000, "chunks of BenchmarkPass, in a tenth of a thousandth as many snapshots")

// BenchmarkPass prunes a repository with many chunks and snapshots, of which the first half of the
// chunks is from the first snapshot, and the others are from the changes of the following ones. It
// has rows in the index, and no objects.
//
//	go test ./internal/prune -run '^$' -bench Pass -benchtime 3x -timeout 0 -args -chunks 10000000
func BenchmarkPass(b *testing.B) {
	for _, backend := range backends {
		b.Run(backend.name, func(b *testing.B) {
			snapshots := max(*benchChunks/10_000, 2)
			m := &many{world: newWorld(b, backend.open(b), 1), packs: 10_000}
			m.ctx = context.WithoutCancel(m.ctx)
			m.directories = *benchChunks / 2 / chunksOfDirectory
			all := []*snapshot{m.takeSnapshot(0, m.directories)}
			changed := max(m.directories/(snapshots-1), 1)
			for i := range snapshots - 1 {
				all = append(all, m.takeSnapshot(i*changed, (i+1)*changed))
			}
			for _, snap := range all[:snapshots/10] { // what the pass deletes, at the end
				m.forget(m.shards[0], snap)
			}
			debug.FreeOSMemory()
			before := m.resident("VmRSS")
			m.must(os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)) // the peak begins anew
			b.ResetTimer()
			began, used := time.Now(), m.cpuSeconds()
			for range b.N {
				m.run(0, true)
			}
			b.ReportMetric(float64(m.next)*float64(b.N)/time.Since(began).Seconds(), "chunks/s")
			b.ReportMetric((m.cpuSeconds()-used)/float64(b.N), "CPU-s")
			b.StopTimer()
			began, used = time.Now(), m.cpuSeconds()
			result := m.run(0, false)
			b.ReportMetric(float64(m.next)/time.Since(began).Seconds(), "swept-chunks/s")
			b.ReportMetric(m.cpuSeconds()-used, "swept-CPU-s")
			b.ReportMetric(float64(m.resident("VmHWM")-before)/1024, "MiB")
			b.Logf("%d chunks, %d snapshots; the pass that deletes took %s: %+v", m.next, snapshots, time.Since(began).Round(time.Millisecond), result)
		})
	}
}

// cpuSeconds returns the CPU time of this process. It does not include a database server's.
func (m *many) cpuSeconds() float64 {
	m.Helper()
	var usage syscall.Rusage
	m.must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

// resident returns a figure of this process's memory, in KiB.
func (m *many) resident(name string) (kib int64) {
	m.Helper()
	status, err := os.ReadFile("/proc/self/status")
	m.must(err)
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, name+": %d kB", &kib); err == nil {
			return kib
		}
	}
	m.Fatalf("/proc/self/status has no %s", name)
	return 0
}
