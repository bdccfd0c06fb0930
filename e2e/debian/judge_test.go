package debian

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

// isLockedDown looks at what the machine offers to others: nothing without TLS, nothing without a
// certificate that counts.
func (r *reading) isLockedDown(t *testing.T) {
	t.Helper()
	if state := strings.TrimSpace(r.main.run(t, "systemctl is-system-running || systemctl --failed")); state != "running" {
		t.Errorf("the system is %s", state)
	}
	ports := strings.Fields(r.main.run(t, `ss --no-header --tcp --listening --numeric | grep --invert-match --extended-regexp '127\.0\.0\.[0-9]+:|\[::1\]:' | sed --regexp-extended 's/.*:([0-9]+) .*/\1/' | sort --unique`))
	// The port of cluster routes is not there: this NATS is alone.
	if want := []string{"4222", "5432", "7070", "9464", "9465", "9466", "9467", "9468"}; !slices.Equal(ports, want) {
		t.Errorf("others reach the ports %v, not %v", ports, want)
	}
	for _, refused := range []string{
		"curl --silent --fail http://backup.example.com:9464/metrics",
		"curl --silent --fail --cacert /etc/bctl/operator/ca.pem https://backup.example.com:9464/metrics",
		"curl --silent --fail --cacert /etc/bctl/operator/ca.pem --resolve walker.bctl:9464:127.0.0.1 https://walker.bctl:9464/metrics",
		"curl --silent --fail http://backup.example.com:7070/",
		"psql 'host=backup.example.com user=bctl_operator dbname=bctl sslmode=disable' --command 'SELECT 1'",
		"psql 'host=backup.example.com user=bctl_operator dbname=bctl sslmode=require' --command 'SELECT 1'",
		"runuser --user alice -- cat /etc/bctl/operator/key.pem",
		"runuser --user bctl-walker -- cat /etc/bctl/walker@default/key.pem",
	} {
		if status, text, err := r.main.try(t.Context(), refused); err != nil || status == 0 {
			t.Errorf("%s (%v):\n%s", refused, err, text)
		}
	}
	for _, allowed := range []string{
		"curl --silent --fail --cacert /etc/bctl/operator/ca.pem --resolve walker.bctl:9464:127.0.0.1 https://walker.bctl:9464/readyz",
		"curl --silent --fail --cacert /etc/prometheus/bctl/ca.pem --cert /etc/prometheus/bctl/cert.pem --key /etc/prometheus/bctl/key.pem --resolve walker.bctl:9464:127.0.0.1 https://walker.bctl:9464/metrics",
	} {
		r.main.run(t, allowed)
	}
}

// isConfined looks at the processes: each service has a user of its own, and of all capabilities
// workers have the one to read, committers and pruners none.
func (r *reading) isConfined(t *testing.T) {
	t.Helper()
	for unit, want := range map[string]string{
		"bctl-walker@default": "bctl-walker 0000000000000004", "bctl-reader@default": "bctl-reader 0000000000000004", "bctl-committer": "bctl-committer 0000000000000000",
		"bctl-pruner": "bctl-pruner 0000000000000000", "bctl-scrubber": "bctl-scrubber 0000000000000000",
	} {
		const show = `pid=$(systemctl show --property MainPID --value UNIT); echo "$(stat --format %U /proc/$pid) $(sed --quiet 's/^CapEff:\t//p' /proc/$pid/status)"`
		if seen := strings.TrimSpace(r.main.run(t, strings.ReplaceAll(show, "UNIT", unit))); seen != want {
			t.Errorf("%s runs as %q, not %q", unit, seen, want)
		}
	}
	t.Logf("at most in memory, in bytes:\n%s", r.main.run(t, `for unit in bctl-walker@default bctl-reader@default bctl-committer bctl-pruner bctl-scrubber; do
	group=$(systemctl show --property ControlGroup --value $unit)
	echo "$unit $(cat /sys/fs/cgroup/memory$group/memory.max_usage_in_bytes /sys/fs/cgroup$group/memory.peak 2>/dev/null)"
done`))
}

// isWatched stops a service in the middle of its work: systemd misses its signs of life, has it
// write what it was at, and starts another.
func (r *reading) isWatched(t *testing.T) {
	t.Helper()
	r.main.run(t, `
drop_in=/run/systemd/system/bctl-committer.service.d
mkdir --parents $drop_in
printf '[Service]\nWatchdogSec=3s\n' >$drop_in/watchdog.conf
systemctl daemon-reload
systemctl restart bctl-committer
show() { systemctl show --property "$1" --value bctl-committer; }
first=$(show WatchdogTimestampMonotonic)
until [ "$(show WatchdogTimestampMonotonic)" != "$first" ]; do sleep 0.1; done
kill -STOP "$(show MainPID)"
until [ "$(show NRestarts)" -ge 1 ] && systemctl is-active bctl-committer; do sleep 0.2; done
journalctl --sync
journalctl --unit bctl-committer | grep 'SIGABRT: abort'
journalctl --unit bctl-committer | grep 'goroutine 1 '
rm --recursive $drop_in
systemctl daemon-reload
systemctl restart bctl-committer
`)
}

// isMeasured looks at what Prometheus makes of the alert rules.
func (r *reading) isMeasured(t *testing.T) {
	t.Helper()
	unhealthy := r.main.run(t, `curl --silent http://127.0.0.1:9090/api/v1/rules | jq --raw-output '.data.groups[].rules[] | select(.health == "err" or .state == "firing") | "\(.name): \(.state) \(.lastError // "")"'`)
	if unhealthy != "" {
		t.Errorf("rules that fail, or fire on the first day:\n%s", unhealthy)
	}
	if count := strings.TrimSpace(r.main.run(t, `curl --silent http://127.0.0.1:9090/api/v1/rules | jq '.data.groups[].rules | length'`)); count != countAlerts(t) {
		t.Errorf("Prometheus has %s rules of %s", count, countAlerts(t))
	}
}

// takesPart has the second machine do all the work of a walker.
func (r *reading) takesPart(t *testing.T) {
	t.Helper()
	r.main.run(t, "systemctl stop bctl-walker@default")
	r.main.run(t, "bctl backup --filer nas1")
	r.main.run(t, "systemctl start bctl-walker@default")
	r.main.run(t, `until curl --silent --get --data-urlencode 'query=up{job="bctl-walker"} == 1' http://127.0.0.1:9090/api/v1/query | jq --raw-output '.data.result[].metric.instance' | grep walker2; do sleep 1; done`)
}

// worksStill makes a backup with something new in it, and restores that.
func (r *reading) worksStill(t *testing.T, round string) {
	t.Helper()
	r.main.run(t, strings.ReplaceAll(`
echo "round ROUND" >/home/alice/new
bctl backup --filer files
bctl restore latest --filer files --shard /home --identity /root/fleet/admin/identity.txt --target /var/tmp/round
diff --recursive --no-dereference /home /var/tmp/round
rm --recursive /var/tmp/round
systemctl --failed --quiet --no-legend
`, "ROUND", round))
	up := `curl --silent --get --data-urlencode 'query=up{job=~"bctl-.*"} == 1' http://127.0.0.1:9090/api/v1/query | jq --raw-output '.data.result | length'`
	r.main.run(t, `until [ "$(`+up+`)" = 6 ]; do sleep 1; done`) // five services, and the second machine's walker
}

// losesPostgres makes a snapshot that the dump does not have, and then destroys the server with all
// that it had.
func (r *reading) losesPostgres(t *testing.T) {
	t.Helper()
	r.main.run(t, `
echo "after the dump" >/home/alice/after
bctl backup --filer files
pg_dropcluster --stop 15 main
rm --recursive /etc/postgresql/bctl
test ! -e /var/lib/postgresql/15/main
`)
}

// hasItsIndexBack restores the last snapshot before the dump, and the one after it, of which the
// dump knows nothing.
func (r *reading) hasItsIndexBack(t *testing.T) {
	t.Helper()
	r.main.run(t, `
bctl snapshot ls --filer files --shard /home --json | tail --lines 3 | head --lines 2 | jq --raw-output .id >/var/tmp/ids
bctl restore "$(head --lines 1 /var/tmp/ids)" --identity /root/fleet/admin/identity.txt --target /var/tmp/before
test ! -e /var/tmp/before/alice/after
grep 'round 2' /var/tmp/before/alice/new
diff --recursive --no-dereference --exclude after /home /var/tmp/before
bctl restore "$(tail --lines 1 /var/tmp/ids)" --identity /root/fleet/admin/identity.txt --target /var/tmp/after
diff --recursive --no-dereference /home /var/tmp/after
rm --recursive /var/tmp/before /var/tmp/after
`)
}

// leaves takes the package away: nothing of it runs, and what opens backups stays.
func (r *reading) leaves(t *testing.T) {
	t.Helper()
	m := r.machines["walker2.example.com"]
	m.run(t, "apt-get purge --yes bctl")
	if left := m.run(t, "systemctl list-units --all --plain --no-legend 'bctl-*'; find /etc/systemd /usr -name '*bctl*' -not -path '/usr/share/doc/*'"); strings.TrimSpace(left) != "" {
		t.Errorf("the package leaves\n%s", left)
	}
	m.run(t, "test -s /etc/bctl/walker@default/key.pem")
}

// contextOf returns a context that also the test's cleanup may use.
func contextOf(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

// save writes what a reader has into a file of this test.
func save(name string, from io.ReadCloser) error {
	defer from.Close()
	to, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		_ = to.Close() // the copy has failed already
		return err
	}
	return to.Close()
}
