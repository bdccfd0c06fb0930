//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// A knob is a setting of bctl that bounds a queue, a batch, or how much is done at once.
type knob struct {
	env    string // BCTL_…
	values []string
	fleet  bool   // of services that only a fleet has
	steps  []step // that it may matter for
}

// knobs are all such settings; docs/configuration.md says what each is.
var knobs = []knob{
	{"BCTL_WORKER_TASKS", []string{"1", "2", "4", "8", "16", "32"}, false, []step{unchanged}},
	{"BCTL_WORKER_DIRECTORIES", []string{"1", "2", "4", "8", "16", "32", "64"}, false, []step{first, unchanged}},
	{"BCTL_WORKER_BATCHES", []string{"1", "2", "4", "8", "16", "32"}, false, []step{first}},
	{"BCTL_WORKER_IN_HAND", []string{"4", "8", "16", "32", "64", "128"}, false, []step{first}},
	{"BCTL_WORKER_WORKERS", []string{"1", "2", "4", "8"}, false, []step{first}},
	{"BCTL_WORKER_LINGER", []string{"1ms", "10ms", "100ms", "500ms"}, false, []step{first}},
	{"BCTL_WORKER_TASKS", []string{"1", "2", "4", "16", "32"}, true, []step{unchanged}},
	{"BCTL_WORKER_DIRECTORIES", []string{"2", "4", "8", "16", "32"}, true, []step{first, unchanged}},
	{"BCTL_WORKER_BATCHES", []string{"2", "4", "8", "16", "32"}, true, []step{first}},
	{"BCTL_WORKER_IN_HAND", []string{"8", "16", "64", "128"}, true, []step{first}},
	{"BCTL_WORKER_QUEUED", []string{"16", "64", "128", "512", "2048"}, true, []step{first, unchanged}},
	{"BCTL_WORKER_POLL", []string{"20ms", "50ms", "250ms", "1s"}, true, []step{first, unchanged}},
	{"BCTL_WORKER_LINGER", []string{"1ms", "10ms", "100ms", "500ms"}, true, []step{first}},
	{"BCTL_INDEX_MAX_CONNECTIONS", []string{"2", "4", "8", "16"}, true, []step{first, unchanged}},
}

const (
	// maxDefaultShare is how much slower the defaults may be than the best value of a setting.
	maxDefaultShare = 1.1
	// The best of many values is often the best by chance. If it seems better than the default by
	// more than doubtfulShare, both are run againRounds times more, and only these runs count.
	doubtfulShare = 0.95
	againRounds   = 5
)

// A swept is one setting's measurement.
type swept struct {
	Env     string               `json:"env"`
	Fleet   bool                 `json:"fleet"`
	Step    step                 `json:"step"`
	Default []float64            `json:"default"` // seconds, by round
	Values  map[string][]float64 `json:"values"`
	Again   []float64            `json:"again"` // the best value ÷ the default, by round, once more
}

// measureKnobs tries the values of each setting on the tree obnam, with the other settings at their
// defaults. Each round also runs the default, so that each ratio is of runs one after the other.
func measureKnobs(ctx context.Context, r *runner) (err error) {
	c := r.chapter("knobs")
	tree := filepath.Join(r.work, "tree")
	p := presets["obnam"].shape
	if !r.o.full {
		p.files, p.directories, p.bytes = p.files/4, p.directories/4, p.bytes/4
	}
	p = r.o.shaped(p)
	progress("making %d files", p.files)
	if err := errors.Join(p.make(tree), pass(ctx)); err != nil {
		return err
	}
	b := r.bench(tree, nil)
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.warm(ctx); err != nil {
		return err
	}
	var all []swept
	for _, k := range knobs {
		for _, s := range k.steps {
			if r.o.steps != "" && !slices.Contains(strings.Split(r.o.steps, ","), string(s)) {
				continue
			}
			of, err := b.sweep(ctx, k, s, r.o.rounds)
			if err != nil {
				return err
			}
			all = append(all, of)
		}
	}
	c.Data = all
	c.say("The tree obnam (%d files, %d MB), in one process or as a fleet with one service of each kind. One setting at a time is changed. Times are medians of %d rounds, each of which also runs the default. \"best ÷ default\" is the median of the rounds' ratios. If that was below %.2f, it is the median of %d more rounds of these two values.",
		p.files, p.bytes/1e6, r.o.rounds, doubtfulShare, againRounds)
	writeSwept(c, all)
	return c.endIn(r.o.tuning)
}

// sweep measures one setting in one step.
func (b *bench) sweep(ctx context.Context, k knob, s step, rounds int) (of swept, err error) {
	of = swept{Env: k.env, Fleet: k.fleet, Step: s, Values: map[string][]float64{}}
	tool, p, err := b.renew(ctx, k, "")
	if err != nil {
		return of, err
	}
	defer func() { err = errors.Join(err, p.leave()) }()
	if s == unchanged {
		if _, err := b.beside(ctx, p.host, tool.backup(*p), tool.environment(*p)); err != nil {
			return of, err
		}
	}
	run := func(value string) (float64, error) {
		if s == first {
			if err := p.leave(); err != nil {
				return 0, err
			}
			tool, p, err = b.renew(ctx, k, value)
		} else {
			err = k.set(p, value)
		}
		if err != nil {
			return 0, err
		}
		return b.timed(ctx, k, tool, p, value)
	}
	values := append([]string{""}, k.values...)
	for round := range rounds {
		for i := range values {
			value := values[(i+round)%len(values)]
			seconds, err := run(value)
			if err != nil {
				return of, err
			}
			if value == "" {
				of.Default = append(of.Default, seconds)
			} else {
				of.Values[value] = append(of.Values[value], seconds)
			}
		}
	}
	if best, ratio := of.best(k.values); ratio < doubtfulShare {
		for round := range againRounds {
			pair := []string{"", best}
			took := map[string]float64{}
			for i := range pair {
				value := pair[(i+round)%2]
				if took[value], err = run(value); err != nil {
					return of, err
				}
			}
			of.Again = append(of.Again, took[best]/took[""])
		}
	}
	progress("%-28s %-10s fleet: %-5v default %.2f s, %s", k.env, s, k.fleet, median(of.Default), of.text(k.values))
	return of, nil
}

// timed makes a backup and returns how long that took.
func (b *bench) timed(ctx context.Context, k knob, t *tool, p *place, value string) (float64, error) {
	m, err := b.beside(ctx, p.host, t.backup(*p), append(t.environment(*p), k.setting(value)...))
	if f, ok := p.host.(*fleetHost); ok && err == nil {
		return f.lastSeconds(ctx)
	}
	return m.WallSeconds, err
}

// setting is the environment that gives the setting a value; "": its default.
func (k *knob) setting(value string) []string {
	if value == "" {
		return nil
	}
	return []string{k.env + "=" + value}
}

// set gives the services of a fleet the value. In one process it is the command's.
func (k *knob) set(p *place, value string) error {
	f, ok := p.host.(*fleetHost)
	if !ok {
		return nil
	}
	f.stopServices()
	return f.startServices(oneOfEach, k.setting(value))
}

// renew makes a new repository, in a fleet whose services have the value.
func (b *bench) renew(ctx context.Context, k knob, value string) (*tool, *place, error) {
	t := *tools()[0]
	if k.fleet {
		t = *tools()[1]
		t.start = func(ctx context.Context, dir, tree string) (host, error) {
			f, err := startFleet(ctx, dir, tree, oneOfEach, k.setting(value)...)
			if err != nil {
				return nil, err // and not a host that is nil
			}
			return f, nil
		}
	}
	b.serial++
	t.name = fmt.Sprintf("knob %d", b.serial)
	p, err := b.placeFor(ctx, &t, first, 0)
	delete(b.places, t.name) // it is the caller's to leave
	return &t, p, err
}

// text lists the values' seconds.
func (of *swept) text(values []string) string {
	var parts []string
	for _, value := range values {
		if seconds := of.Values[value]; len(seconds) > 0 {
			parts = append(parts, fmt.Sprintf("%s: %.2f", value, median(seconds)))
		}
	}
	return strings.Join(parts, ", ")
}

// best returns the value with the smallest ratio to the default, and that.
func (of *swept) best(values []string) (best string, ratio float64) {
	for _, value := range values {
		var ratios []float64
		for i, seconds := range of.Values[value] {
			ratios = append(ratios, seconds/of.Default[i])
		}
		if m := median(ratios); len(ratios) > 0 && (best == "" || m < ratio) {
			best, ratio = value, m
		}
	}
	if len(of.Again) > 0 {
		ratio = median(of.Again)
	}
	return best, ratio
}

func writeSwept(c *chapter, all []swept) {
	rows := [][]string{{"setting", "", "step", "default s", "best", "best ÷ default", "seconds by value"}}
	worst, which := 0.0, ""
	for i := range all {
		of := &all[i]
		values := valuesOf(of)
		best, ratio := of.best(values)
		where := map[bool]string{false: "one process", true: "fleet"}[of.Fleet]
		rows = append(rows, []string{
			"`" + of.Env + "`", where, of.Step.title(), fmt.Sprintf("%.2f", median(of.Default)), best, fmt.Sprintf("%.2f", ratio), of.text(values),
		})
		if share := 1 / ratio; share > worst {
			worst, which = share, fmt.Sprintf("%s=%s, %s, %s", of.Env, best, where, of.Step)
		}
	}
	c.table(rows)
	if len(all) == 0 {
		return
	}
	c.atMost("Defaults, × the best value of any one setting ("+which+")", "%.2f", worst, maxDefaultShare)
}

func valuesOf(of *swept) []string {
	for _, k := range knobs {
		if k.env == of.Env && k.fleet == of.Fleet {
			return k.values
		}
	}
	return nil
}
