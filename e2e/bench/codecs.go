//go:build linux

package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store/dirstore"
)

var codecNames = []string{"none", "s2", "zstd-1", "zstd-2", "zstd-3", "zstd-4"}

// stages are the keys of a summary's stage_seconds, in the order of the flow.
var stages = []string{"walk", "read", "hash", "compress", "seal", "upload", "commit"}

// A summary is the last line of bctl backup --json.
type summary struct {
	Type           string             `json:"type"`
	Files          int64              `json:"files"`
	Directories    int64              `json:"directories"`
	StoredBytes    int64              `json:"stored_bytes"`
	NewBytes       int64              `json:"new_bytes"`
	StatCalls      int64              `json:"stat_calls"`
	ElapsedSeconds float64            `json:"elapsed_seconds"`
	StageSeconds   map[string]float64 `json:"stage_seconds"`
}

// A coded has the measurements of first backups with one codec.
type coded struct {
	Codec   string    `json:"codec"`
	Seconds []float64 `json:"seconds"` // by round
	CPU     float64   `json:"cpu_seconds"`
	Summary summary   `json:"summary"`
	// Ratios[i] is the share of the plaintext in frames that were compressed to between i and i+1
	// tenths of their size.
	Ratios [ratioBuckets]float64 `json:"ratios"`
	Raw    float64               `json:"raw"` // share in frames that are stored as they are
}

const (
	ratioBuckets = 10
	// maxIncompressibleShare bounds the time of a backup of incompressible files, as a multiple of
	// the time without compression.
	maxIncompressibleShare = 1.05
)

// measureCodecs makes first backups with each codec: of the tree conserve, and of a tree that
// cannot be compressed.
func measureCodecs(ctx context.Context, r *runner) error {
	c := r.chapter("codecs")
	tree := filepath.Join(r.work, "mixed", "tree")
	if err := errors.Join(os.Mkdir(filepath.Dir(tree), 0o755), r.makeTree(ctx, "conserve", tree)); err != nil {
		return err
	}
	mixed, err := r.codecs(ctx, tree, codecNames)
	if err != nil {
		return err
	}
	noise := filepath.Join(r.work, "incompressible", "tree")
	p := r.o.shaped(presets["conserve"].shape)
	p.textShare = 0
	if err := errors.Join(os.Mkdir(filepath.Dir(noise), 0o755), p.make(noise), pass(ctx)); err != nil {
		return err
	}
	incompressible, err := r.codecs(ctx, noise, []string{"none", "zstd-1"})
	if err != nil {
		return err
	}
	c.Data = map[string][]coded{"conserve": mixed, "incompressible": incompressible}
	c.say("First backups of the tree conserve (%d MB, %d files) with each codec. Seconds of stages are sums over all workers; the default is zstd-1.",
		p.bytes/1e6, p.files)
	writeStages(c, mixed)
	c.say("The percentage of the plaintext that is in frames of each compressed size, relative to their original size:")
	writeRatios(c, mixed)
	c.say("The same table for random bytes:")
	writeStages(c, incompressible)
	// The two backups of a round run one after the other, so that other load of the machine affects
	// both.
	var ratios []float64
	for i, seconds := range incompressible[1].Seconds {
		ratios = append(ratios, seconds/incompressible[0].Seconds[i])
	}
	c.atMost("Incompressible files, zstd-1 × none", "%.3f", median(ratios), maxIncompressibleShare)
	return c.end()
}

// codecs makes first backups of a tree, all codecs in each round.
func (r *runner) codecs(ctx context.Context, tree string, names []string) ([]coded, error) {
	b := r.bench(tree, nil)
	all := make([]coded, len(names))
	for round := range r.o.rounds {
		if err := b.warm(ctx); err != nil {
			return nil, err
		}
		for i, name := range names {
			t := codecTool(name)
			p, err := b.placeFor(ctx, t, first, round)
			if err != nil {
				return nil, err
			}
			started := time.Now()
			s, m, err := b.summary(ctx, t, *p)
			if err != nil {
				return nil, err
			}
			of := &all[i]
			of.Codec, of.Summary, of.CPU = name, s, m.cpuSeconds()
			of.Seconds = append(of.Seconds, m.WallSeconds)
			if round == r.o.rounds-1 {
				err = of.readRatios(*p)
			}
			if err != nil {
				return nil, err
			}
			progress("%-10s %8.2f s wall %8.2f s CPU, %d MB stored (%v)", name, m.WallSeconds, of.CPU, s.StoredBytes/1e6, time.Since(started).Round(time.Millisecond))
		}
	}
	return all, nil
}

// codecTool returns the tool bctl with a codec.
func codecTool(name string) *tool {
	t := *tools()[0]
	t.name, t.env = name, append(slices.Clone(t.env), "BCTL_CODEC="+name)
	return &t
}

// summary runs a backup with bctl and returns its summary.
func (b *bench) summary(ctx context.Context, t *tool, p place, more ...string) (s summary, m sample, err error) {
	if err := settle(b.work); err != nil {
		return s, m, err
	}
	c := t.backup(p)
	c.args = append(append(c.args, "--json"), more...)
	out, err := os.Create(filepath.Join(p.home, "summary"))
	if err != nil {
		return s, m, err
	}
	defer out.Close()
	c.stdout = out
	if m, err = b.beside(ctx, p.host, c, t.environment(p)); err != nil {
		return s, m, err
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		return s, m, err
	}
	for line := range strings.Lines(string(text)) {
		if err := json.Unmarshal([]byte(line), &s); err == nil && s.Type == "summary" {
			return s, m, nil
		}
	}
	return s, m, fmt.Errorf("bctl printed no summary: %s", text)
}

// repositoryOf returns the id of the repository at a place.
func repositoryOf(p place) (backup.RepositoryID, error) {
	s, err := dirstore.Open(filepath.Join(p.repo, "store"))
	if err != nil {
		return backup.RepositoryID{}, err
	}
	defer s.Close()
	object, err := repo.ReadObject(context.Background(), s)
	return object.ID, err
}

// readRatios reads the tables of all packs of a repository.
func (of *coded) readRatios(p place) error {
	opener, err := openerOf(p)
	if err != nil {
		return err
	}
	repository, err := repositoryOf(p)
	if err != nil {
		return err
	}
	var plain, raw float64
	err = filepath.WalkDir(filepath.Join(p.repo, "store", "packs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		id, err := hex.DecodeString(filepath.Base(path))
		if err != nil || len(id) != len(backup.PackID{}) {
			return fmt.Errorf("%s is not the name of a pack: %w", path, err)
		}
		reader, err := pack.OpenBytes(data, repository, backup.PackID(id), opener)
		if err != nil {
			return err
		}
		for _, f := range reader.Frames() {
			size := float64(f.RawLength)
			plain += size
			if f.Codec == pack.CodecNone {
				raw += size
				continue
			}
			of.Ratios[min(int(float64(f.SealedLength)/size*ratioBuckets), ratioBuckets-1)] += size
		}
		return nil
	})
	if err != nil || plain == 0 {
		return err
	}
	for i := range of.Ratios {
		of.Ratios[i] /= plain
	}
	of.Raw = raw / plain
	return nil
}

// openerOf reads the identity that bctl init has created in the place's home.
func openerOf(p place) (*seal.Opener, error) {
	identities, err := filepath.Glob(filepath.Join(p.home, "config", "bctl", "identities", "*.txt"))
	if err != nil || len(identities) != 1 {
		return nil, errors.Join(fmt.Errorf("identities in %s: %q", p.home, identities), err)
	}
	text, err := os.ReadFile(identities[0])
	if err != nil {
		return nil, err
	}
	return seal.NewOpener(text)
}

func writeStages(c *chapter, all []coded) {
	rows := [][]string{append([]string{"codec", "wall s", "CPU s", "MB/s", "stored MB"}, stages...)}
	for _, of := range all {
		s := &of.Summary
		seconds := median(of.Seconds)
		row := []string{
			of.Codec, fmt.Sprintf("%.2f", seconds), fmt.Sprintf("%.2f", of.CPU), fmt.Sprintf("%.0f", float64(s.NewBytes)/1e6/seconds), fmt.Sprintf("%.1f", float64(s.StoredBytes)/1e6),
		}
		for _, stage := range stages {
			row = append(row, fmt.Sprintf("%.2f", s.StageSeconds[stage]))
		}
		rows = append(rows, row)
	}
	c.table(rows)
}

func writeRatios(c *chapter, all []coded) {
	head := []string{"codec"}
	for i := range ratioBuckets {
		head = append(head, fmt.Sprintf("< %d%%", (i+1)*100/ratioBuckets))
	}
	rows := [][]string{append(head, "as it is")}
	for _, of := range all {
		row := []string{of.Codec}
		for _, share := range append(of.Ratios[:], of.Raw) {
			row = append(row, percent(share))
		}
		rows = append(rows, row)
	}
	c.table(rows)
}

// percent formats a share as a percentage, and zero as nothing.
func percent(share float64) string {
	if share == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f%%", share*100)
}
