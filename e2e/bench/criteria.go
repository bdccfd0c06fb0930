//go:build linux

package main

import "fmt"

// maxPeakBytes is what no process of bctl may have resident at once.
const maxPeakBytes = 400 << 20

// A verdict is whether one of the criteria holds.
type verdict struct {
	holds bool
	text  string
}

// criteria compares bctl with the peers that were measured. What has nothing
// to be compared with is left out.
func (r *report) criteria() []verdict {
	var verdicts []verdict
	for _, c := range []struct {
		step  step
		share float64 // of the fastest peer's seconds, that bctl may take
	}{{first, 1}, {unchanged, 0.5}} {
		if peer, ok := r.fastestPeer(c.step); ok {
			verdicts = append(verdicts, verdict{
				peer.WallRatio*c.share >= 1,
				fmt.Sprintf("%s: bctl takes %.2f of the time of %s, the fastest peer (at most %.2f)", c.step.title(), 1/peer.WallRatio, peer.Tool, c.share),
			})
		}
	}
	bctl, ok := r.result("bctl", first)
	restic, both := r.result("restic", first)
	if ok && both {
		verdicts = append(verdicts, verdict{
			bctl.StoredBytes <= restic.StoredBytes,
			fmt.Sprintf("Stored: bctl %.1f MiB, restic %.1f MiB", float64(bctl.StoredBytes)/(1<<20), float64(restic.StoredBytes)/(1<<20)),
		})
	}
	var peak int64
	for _, res := range r.Results {
		if res.Tool == "bctl" {
			peak = max(peak, res.PeakBytes)
		}
	}
	if peak > 0 {
		verdicts = append(verdicts, verdict{
			peak < maxPeakBytes, fmt.Sprintf("Peak memory: %d MiB (less than %d)", peak>>20, maxPeakBytes>>20),
		})
	}
	return verdicts
}

// fastestPeer returns the peer with the smallest ratio to bctl. References are no peers.
func (r *report) fastestPeer(s step) (fastest result, ok bool) {
	for _, t := range r.tools {
		if t.reference || t.name == "bctl" {
			continue
		}
		if res, has := r.result(t.name, s); has && (!ok || res.WallRatio < fastest.WallRatio) {
			fastest, ok = res, true
		}
	}
	return fastest, ok && fastest.WallRatio > 0
}

func (r *report) result(tool string, s step) (result, bool) {
	for _, res := range r.Results {
		if res.Tool == tool && res.Step == s {
			return res, true
		}
	}
	return result{}, false
}
