package doctor

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/source/posix"
)

// A sourceDoctor checks a directory to be backed up.
type sourceDoctor struct {
	path   string
	fleet  bool // it is probably a filer's
	mount  posix.Mount
	survey posix.Survey
	asked  time.Time
}

// surveyed is the number of entries examined.
const surveyed = 1000

func sourceGroup(p *Parts, path string) Group {
	d := &sourceDoctor{path: path, fleet: p.Config != nil && p.Config.Fleet()}
	g := Group{Name: "source " + path}
	id := func(name string) string { return "source." + name + " " + path }
	add := func(name, needs string, timeout time.Duration, run func(context.Context) Result) {
		c := Check{ID: id(name), Timeout: timeout, Run: run}
		if needs != "" {
			c.Needs = []string{id(needs)}
		}
		g.Checks = append(g.Checks, c)
	}
	add("mount", "", 0, d.mounted)
	add("options", "mount", 0, d.options)
	add("walk", "mount", time.Minute, d.walk)
	add("latency", "walk", 0, d.latency)
	add("access", "walk", 0, d.access)
	add("page_cache", "walk", 0, d.pageCache)
	add("traces", "walk", 0, d.traces)
	add("attributes", "walk", 0, d.attributes)
	add("change_times", "walk", 0, d.changeTimes)
	add("clock", "walk", 0, d.clock)
	return g
}

func (d *sourceDoctor) mounted(context.Context) Result {
	var err error
	if d.mount, err = posix.MountOf(d.path); err != nil {
		return fail("mount it, or correct the path", "%s", oneLine(err))
	}
	text := fmt.Sprintf("%s from %s", d.mount.FileSystem, d.mount.Device)
	switch {
	case d.mount.Root:
		return ok("a mount point: %s", text)
	case d.mount.Network():
		return ok("below the mount point %s: %s", d.mount.Point, text)
	}
	seen := fmt.Sprintf("no mount point: a directory of %s (%s)", d.mount.Point, text)
	if d.fleet {
		return warn("mount the filer here; if the directory is this machine's own, nothing needs to be done", "%s", seen)
	}
	return ok("%s. If a filer's export should be here, it is not mounted", seen)
}

func (d *sourceDoctor) options(context.Context) Result {
	m := &d.mount
	var v verdict
	v.ok("%s", strings.Join(m.Options, ",")) // options of the mount and the file system
	if !strings.HasPrefix(m.FileSystem, "nfs") {
		return v.result()
	}
	if _, soft := m.Option("soft"); soft {
		v.add(warn("mount it with hard: bctl waits, and goes on with other filers meanwhile", "soft: a filer that is slow looks like files that cannot be read"))
	}
	if _, nointr := m.Option("noac"); nointr {
		v.add(warn("mount it without noac", "noac: each stat goes to the filer twice or more"))
	}
	if _, off := m.Option("nordirplus"); off {
		v.add(warn("mount it without nordirplus", "nordirplus: each entry costs a request of its own"))
	}
	if read, ok := m.Option("rsize"); ok {
		if n, err := strconv.Atoi(read); err == nil && n < 256<<10 {
			v.add(warn("mount it with rsize=1048576", "rsize is %s", size(uint64(n))))
		}
	}
	if version, ok := m.Option("vers"); ok && strings.HasPrefix(version, "2") {
		v.add(warn("mount it with vers=3 or later", "NFS version 2"))
	}
	return v.result()
}

func (d *sourceDoctor) walk(ctx context.Context) Result {
	d.asked = time.Now()
	var err error
	if d.survey, err = posix.New(posix.Options{}).Survey(ctx, d.path, surveyed); err != nil {
		return fail("look at the file server, the mount, and the permissions of this user", "%s", oneLine(err))
	}
	return d.walked()
}

func (d *sourceDoctor) walked() Result {
	s := &d.survey
	text := fmt.Sprintf("%s looked at, directories read: %d", plural(s.Entries, "file"), s.Directories)
	if s.Entries == 0 && s.Directories <= 1 {
		return warn("is it mounted?", "it is empty")
	}
	if !s.Openat2 {
		return warn("update the kernel to 5.6 or later, or let the sandbox have openat2", "%s, component by component: the kernel has no openat2", text)
	}
	return ok("%s", text)
}

// slowStat is the latency from which a walker considers a filer slow.
const slowStat = 20 * time.Millisecond

func (d *sourceDoctor) latency(context.Context) Result {
	s := &d.survey
	if s.Entries == 0 {
		return skip("there are no files")
	}
	text := fmt.Sprintf("a stat takes %s (median), %s (99%%)", duration(s.Median), duration(s.P99))
	if s.Median > slowStat {
		return warn("find out what is slow: network, filer, or its disks; more work at a time helps (worker.directories)", "%s", text)
	}
	return ok("%s", text)
}

// access checks the capability that a walker or reader needs to read files of every owner.
func (d *sourceDoctor) access(context.Context) Result {
	s := &d.survey
	who := fmt.Sprintf("user %d", os.Getuid())
	may, err := hasCapability(unix.CAP_DAC_READ_SEARCH)
	if err != nil {
		return skip("%s", oneLine(err))
	}
	if may {
		who += " with DAC_READ_SEARCH"
	}
	switch {
	case s.Denied > 0 && !may:
		return warn("give bctl the capability DAC_READ_SEARCH (the systemd unit has it), or run it as a user who may read all", "%s may not read %d of what was looked at, such as %q", who, s.Denied, s.DeniedPath)
	case s.Denied > 0:
		return warn("export it with no_root_squash, to this machine only; or to a user who may read all", "%s may not read %d of what was looked at, such as %q", who, s.Denied, s.DeniedPath)
	case s.FileError != nil:
		return warn("export it with no_root_squash, or run bctl as a user who may read all", "%s cannot read %q: %s", who, s.File, oneLine(s.FileError))
	case !may:
		return warn("give bctl the capability DAC_READ_SEARCH (the systemd unit has it), unless all files are readable for this user", "%s could read what was looked at, but has no right to read files of every owner", who)
	}
	return ok("%s can read what was looked at", who)
}

// hasCapability reports whether this thread may use a capability.
func hasCapability(capability uint) (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("ask for capabilities: %w", err)
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0, nil
}

func (d *sourceDoctor) pageCache(context.Context) Result {
	s := &d.survey
	switch {
	case s.File == "" || s.FileError != nil:
		return skip("no file could be read")
	case s.Uncached:
		return ok("RWF_DONTCACHE works: what is read does not stay in the page cache")
	case s.Cachestat:
		return ok("no RWF_DONTCACHE (Linux 6.14, ext4, XFS, btrfs); pages are dropped after reading, except those that were there (cachestat)")
	}
	return warn("update the kernel to 6.5 or later, or own the files: without it, what a backup reads stays in the page cache",
		"neither RWF_DONTCACHE nor cachestat works here")
}

func (d *sourceDoctor) traces(context.Context) Result {
	_, noatime := d.mount.Option("noatime")
	_, readOnly := d.mount.Option("ro")
	switch {
	case !d.survey.NoAtimeDenied:
		return ok("O_NOATIME is allowed: access times stay as they are")
	case noatime || readOnly:
		return ok("O_NOATIME is not allowed, and not needed: the mount writes no access times")
	}
	return warn("mount it with noatime or ro, or give bctl the capability FOWNER", "O_NOATIME is not allowed: reading changes access times")
}

func (d *sourceDoctor) attributes(context.Context) Result {
	s := &d.survey
	switch {
	case s.File == "":
		return skip("there is no file to ask")
	case s.XattrError != nil:
		return warn("mount the file system with extended attributes, or let this user read them", "of %q: %s", s.File, oneLine(s.XattrError))
	case d.mount.FileSystem == "nfs":
		return warn("mount it with NFS 4.2, where attributes matter", "NFS 3 has no extended attributes, and ACLs only as the server maps them")
	}
	return ok("extended attributes and ACLs can be read, where there are any")
}

// changeTimes checks the granularity of times: a change within one granule after a file was read
// cannot be detected.
func (d *sourceDoctor) changeTimes(context.Context) Result {
	s := &d.survey
	switch {
	case s.Entries < 5:
		return skip("there are too few files to tell")
	case s.Grain >= time.Second:
		return warn("set worker.grain to 2s on its walkers, if its clock is that coarse", "change times are whole seconds")
	}
	return ok("change times go down to %v", s.Grain)
}

// recent is the maximum age of a change that gives information about the filer's clock.
const recent = time.Minute

// clock can detect only a clock that is ahead, because an older change gives no information. It
// writes nothing to find out more.
func (d *sourceDoctor) clock(context.Context) Result {
	newest := d.survey.Newest
	switch ahead := newest.Sub(d.asked); {
	case newest.IsZero():
		return skip("there are no files")
	case ahead > skewWarns:
		return warn("let NTP keep the clocks of both machines", "the file server's clock is ahead of ours by %s or more", duration(ahead))
	case -ahead < recent:
		return ok("the newest change is %s old: the clocks agree, or the file server's is behind by less", duration(ahead))
	}
	return skip("the newest change that was seen is %s old: too old to compare clocks, and nothing is written to find out", duration(newest.Sub(d.asked)))
}
