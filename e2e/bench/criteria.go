//go:build linux

package main

import (
	"fmt"
	"strings"
)

// The references with which bctl is compared in a step.
const (
	fastest      = "× the fastest peer"
	fastestEqual = "× the fastest peer that compresses and encrypts"
	fastestSafe  = "× the fastest peer that encrypts"
	aFloor       = "× the floor"
	tar          = "× tar with zstd"
	inSeconds    = "seconds"
)

// A limit is the maximum ratio of bctl's time to that of a reference, in a step on a preset.
type limit struct {
	step    step
	against string
	most    float64
}

// limits are the limits by preset.
var limits = map[string][]limit{
	"million": {
		{first, aFloor, 1.3}, {first, fastest, 0.8}, {first, fastestSafe, 0.5},
		{unchanged, fastest, 0.35}, {unchanged, aFloor, 1.5}, {churned, fastest, 0.5},
	},
	"million20": {
		{first, aFloor, 1.6}, {first, fastest, 0.45}, {unchanged, inSeconds, 0.15},
		{restore, fastest, 0.5}, {restore, tar, 1},
	},
	"big":   {{first, fastestEqual, 0.7}, {restore, fastestEqual, 0.7}},
	"obnam": {{unchanged, fastest, 0.5}},
	// The sections codecs and memory have the criteria of these.
	"conserve": nil,
	"hugedir":  nil,
}

const (
	// maxStoredShare is the maximum size of a repository of million, relative to restic's.
	maxStoredShare = 0.85
	// maxPeakMiB is the maximum resident memory of bctl with all its services in one process;
	// maxServiceMiB is that of a service in a process of its own.
	maxPeakMiB    = 400
	maxServiceMiB = 256
)

// criteria compares bctl with the other tools that were measured. It omits
// limits whose reference was not measured. A tree without limits of its own
// has the limits of million that refer to peers.
func (r *report) criteria(c *chapter) {
	of, ok := limits[r.Preset]
	if !ok {
		of = []limit{{first, fastest, 0.8}, {unchanged, fastest, 0.35}, {churned, fastest, 0.5}}
	}
	for _, l := range of {
		bctl, ok := r.result("bctl", l.step)
		if !ok {
			continue
		}
		if l.against == inSeconds {
			c.atMost(l.step.title()+", "+l.against, "%.2f", bctl.WallSeconds, l.most)
		} else if other, ok := r.opponent(l); ok {
			c.atMost(fmt.Sprintf("%s, %s (%s)", l.step.title(), l.against, other.Tool), "%.2f", 1/other.WallRatio, l.most)
		}
	}
	bctl, ok := r.result("bctl", first)
	restic, both := r.result("restic", first)
	if ok && both && restic.StoredBytes > 0 && strings.HasPrefix(r.Preset, "million") {
		c.atMost("Stored, × restic", "%.2f", float64(bctl.StoredBytes)/float64(restic.StoredBytes), maxStoredShare)
	}
	r.memory(c)
}

// memory compares the peaks of memory with their limits.
func (r *report) memory(c *chapter) {
	var peak int64
	services := map[string]int64{}
	for _, s := range r.Samples {
		if s.Tool == "bctl" {
			peak = max(peak, s.PeakBytes)
		}
		for name, bytes := range s.Services {
			services[name] = max(services[name], bytes)
		}
	}
	if peak > 0 {
		c.atMost("Peak memory, MiB", "%.0f", float64(peak>>20), maxPeakMiB)
	}
	largest, which := int64(0), ""
	for name, bytes := range services {
		if bytes > largest {
			largest, which = bytes, name
		}
	}
	if which != "" {
		c.atMost(fmt.Sprintf("Peak memory of a service (%s), MiB", which), "%.0f", float64(largest>>20), maxServiceMiB)
	}
}

// opponent returns the result with which bctl is compared.
func (r *report) opponent(l limit) (result, bool) {
	switch l.against {
	case aFloor:
		if l.step == first {
			return r.measured("floor store", l.step)
		}
		return r.measured("floor walk", l.step)
	case tar:
		return r.measured(gnuTar, l.step)
	case fastestSafe:
		return r.fastestPeer(l.step, func(t *tool) bool { return t.encrypts })
	case fastestEqual:
		return r.fastestPeer(l.step, func(t *tool) bool { return t.encrypts && t.compresses })
	}
	return r.fastestPeer(l.step, func(*tool) bool { return true })
}

// fastestPeer returns the peer with the smallest ratio to bctl. References are no peers.
func (r *report) fastestPeer(s step, which func(*tool) bool) (fastest result, ok bool) {
	for _, t := range r.tools {
		if t.reference || t.ours || !which(t) {
			continue
		}
		if res, has := r.measured(t.name, s); has && (!ok || res.WallRatio < fastest.WallRatio) {
			fastest, ok = res, true
		}
	}
	return fastest, ok
}

// measured returns a result that has a ratio.
func (r *report) measured(tool string, s step) (result, bool) {
	res, ok := r.result(tool, s)
	return res, ok && res.WallRatio > 0
}

func (r *report) result(tool string, s step) (result, bool) {
	for _, res := range r.Results {
		if res.Tool == tool && res.Step == s {
			return res, true
		}
	}
	return result{}, false
}
