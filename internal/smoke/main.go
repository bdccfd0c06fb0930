package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/services/bctl/embedded"
)

func must[T any](v T, err error) T {
	if err != nil {
		fmt.Println("ERR", err)
		os.Exit(1)
	}
	return v
}

func main() {
	prof := flag.String("prof", "", "")
	v := flag.Bool("v", false, "")
	flag.Parse()
	repo, tree := flag.Arg(0), flag.Arg(1)
	t0 := time.Now()
	os.MkdirAll(repo, 0o700)
	ctx := context.Background()
	idx := must(sqliteindex.Open(ctx, filepath.Join(repo, "index.db")))
	_, _, err := idx.Migrate(ctx)
	if err != nil {
		panic(err)
	}
	st, err := dirstore.Open(filepath.Join(repo, "store"))
	if err != nil {
		st = must(dirstore.Create(filepath.Join(repo, "store")))
	}
	keyFile := filepath.Join(repo, "worker.key")
	var key seal.WorkerKey
	if data, err := os.ReadFile(keyFile); err == nil {
		key = must(seal.ParseWorkerKey(data))
	} else {
		_, rec, _ := seal.GenerateIdentity()
		key = seal.WorkerKey{Repository: backup.NewRepositoryID(), Dedup: seal.NewDedupKey(), Recipients: []string{rec}}
		os.WriteFile(keyFile, must(key.MarshalText()), 0o600)
	}
	fmt.Println("opened", time.Since(t0))
	filer := must(idx.EnsureFiler(ctx, "here"))
	shard := must(idx.EnsureShard(ctx, filer.ID, tree, posix.URL(tree)))
	level := slog.LevelWarn
	if *v {
		level = slog.LevelDebug
	}
	if *prof != "" {
		f := must(os.Create(*prof))
		pprof.StartCPUProfile(f)
		defer pprof.StopCPUProfile()
	}
	snap, err := embedded.Backup(ctx, embedded.Options{
		Index: idx, Store: st, Source: posix.New(posix.Options{}), LockDir: filepath.Join(repo, "locks"),
		Repository: backup.Repository{Chunker: chunk.DefaultCutter, Codec: "zstd-1"}, WorkerKey: key,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	}, shard, backup.Snapshot{ID: backup.NewSnapshotID()}, nil)
	fmt.Printf("%v %s %s tasks %d batches %d\n%+v\n", err, snap.State, snap.Reason, snap.TasksAnnounced, snap.BatchesAnnounced, snap.Counts)
	fmt.Println("total", time.Since(t0))
	idx.Close()
}
