package doctor

import "time"

const (
	// skewWarns is more than clocks that NTP synchronizes ever differ. Leases tolerate a
	// difference, because each is measured with a single clock and only compared over minutes; but
	// the times that people and S3 see are wrong.
	skewWarns = 2 * time.Second
	// skewFails is a difference that approaches those at which S3 refuses requests (15 min) and new
	// certificates are not valid yet.
	skewFails = 5 * time.Minute
)

// skew reports the difference of another clock from this machine's. there was read between sent and
// received, with the given granularity.
func skew(there, sent, received time.Time, grain time.Duration) Finding {
	here := sent.Add(received.Sub(sent) / 2)
	difference := there.Add(grain / 2).Sub(here)
	uncertain := received.Sub(sent)/2 + grain/2
	sure := max(difference.Abs()-uncertain, 0)
	text := duration(difference) + " ahead of ours"
	if difference < 0 {
		text = duration(difference) + " behind ours"
	}
	text += " (± " + duration(uncertain) + ")"
	const advice = "synchronize the clocks of both machines with NTP (chrony, systemd-timesyncd)"
	switch {
	case sure >= skewFails:
		return fail(advice, "its clock is %s", text)
	case sure >= skewWarns:
		return warn(advice, "its clock is %s", text)
	}
	return ok("its clock is %s", text)
}
