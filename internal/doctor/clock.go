package doctor

import "time"

const (
	// skewWarns is more than clocks that are kept by NTP ever differ. Leases are measured by one clock each,
	// and only compared over minutes: it is the times that people and S3 see that are wrong.
	skewWarns = 2 * time.Second
	// skewFails is where S3 begins to refuse requests (15 min) and certificates that are new are not valid yet.
	skewFails = 5 * time.Minute
)

// skew tells how far another clock is from ours. there was read between sent and received, with
// this grain.
func skew(there, sent, received time.Time, grain time.Duration) Result {
	here := sent.Add(received.Sub(sent) / 2)
	difference := there.Add(grain / 2).Sub(here)
	uncertain := received.Sub(sent)/2 + grain/2
	sure := max(difference.Abs()-uncertain, 0)
	text := duration(difference) + " ahead of ours"
	if difference < 0 {
		text = duration(difference) + " behind ours"
	}
	text += " (± " + duration(uncertain) + ")"
	const advice = "let NTP keep the clocks of both machines (chrony, systemd-timesyncd)"
	switch {
	case sure >= skewFails:
		return fail(advice, "its clock is %s", text)
	case sure >= skewWarns:
		return warn(advice, "its clock is %s", text)
	}
	return ok("its clock is %s", text)
}
