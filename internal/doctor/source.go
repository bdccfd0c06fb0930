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
	g.add(id("mount"), d.mounted)
	g.add(id("options"), d.options, id("mount"))
	g.add(id("walk"), d.walk, id("mount")).Timeout = time.Minute
	g.add(id("latency"), d.latency, id("walk"))
	g.add(id("access"), d.access, id("walk"))
	g.add(id("page_cache"), d.pageCache, id("walk"))
	g.add(id("traces"), d.traces, id("walk"))
	g.add(id("attributes"), d.attributes, id("walk"))
	g.add(id("change_times"), d.changeTimes, id("walk"))
	g.add(id("clock"), d.clock, id("walk"))
	return g
}

func (d *sourceDoctor) mounted(context.Context) Finding {
	var err error
	if d.mount, err = posix.MountOf(d.path); err != nil {
		return failWith("mount it, or correct the path", err)
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

func (d *sourceDoctor) options(context.Context) Finding {
	m := &d.mount
	var v verdict
	v.ok("%s", strings.Join(m.Options, ",")) // options of the mount and the file system
	if !strings.HasPrefix(m.FileSystem, "nfs") {
		return v.finding()
	}
	if _, soft := m.Option("soft"); soft {
		v.add(warn("mount it with hard: bctl then waits for this filer, and continues with the others", "soft: a slow filer causes read errors"))
	}
	if _, nointr := m.Option("noac"); nointr {
		v.add(warn("mount it without noac", "noac: each stat goes to the filer twice or more"))
	}
	if _, off := m.Option("nordirplus"); off {
		v.add(warn("mount it without nordirplus", "nordirplus: each entry costs a separate request"))
	}
	if read, ok := m.Option("rsize"); ok {
		if n, err := strconv.Atoi(read); err == nil && n < 256<<10 {
			v.add(warn("mount it with rsize=1048576", "rsize is %s", size(n)))
		}
	}
	if version, ok := m.Option("vers"); ok && strings.HasPrefix(version, "2") {
		v.add(warn("mount it with vers=3 or later", "NFS version 2"))
	}
	return v.finding()
}

func (d *sourceDoctor) walk(ctx context.Context) Finding {
	d.asked = time.Now()
	var err error
	if d.survey, err = posix.New(posix.Options{}).Survey(ctx, d.path, surveyed); err != nil {
		return failWith("check the file server, the mount, and the permissions of this user", err)
	}
	return d.walked()
}

func (d *sourceDoctor) walked() Finding {
	s := &d.survey
	text := fmt.Sprintf("%s examined, directories read: %d", plural(s.Entries, "file"), s.Directories)
	if s.Entries == 0 && s.Directories <= 1 {
		return warn("check that it is mounted", "it is empty")
	}
	if !s.Openat2 {
		return warn("update the kernel to 5.6 or later, or allow openat2 in the sandbox", "%s, component by component: the kernel has no openat2", text)
	}
	return ok("%s", text)
}

// slowStat is the latency from which a walker considers a filer slow.
const slowStat = 20 * time.Millisecond

func (d *sourceDoctor) latency(context.Context) Finding {
	s := &d.survey
	if s.Entries == 0 {
		return skip("there are no files")
	}
	text := fmt.Sprintf("a stat takes %s (median), %s (99%%)", duration(s.Median), duration(s.P99))
	if s.Median > slowStat {
		return warn("find out what is slow: the network, the filer, or its disks; a higher worker.directories helps", "%s", text)
	}
	return ok("%s", text)
}

// access checks the capability that a walker or reader needs to read files of every owner.
func (d *sourceDoctor) access(context.Context) Finding {
	s := &d.survey
	who := fmt.Sprintf("user %d", os.Getuid())
	may, err := hasCapability(unix.CAP_DAC_READ_SEARCH)
	if err != nil {
		return skipWith(err)
	}
	if may {
		who += " with DAC_READ_SEARCH"
	}
	switch {
	case s.Denied > 0 && !may:
		return warn("give bctl the capability DAC_READ_SEARCH (the systemd unit has it), or run it as a user who may read all files", "%s may not read %d of the examined entries, such as %q", who, s.Denied, s.DeniedPath)
	case s.Denied > 0:
		return warn("export it with no_root_squash, to this machine only; or to a user who may read all files", "%s may not read %d of the examined entries, such as %q", who, s.Denied, s.DeniedPath)
	case s.FileError != nil:
		return warn("export it with no_root_squash, or run bctl as a user who may read all files", "%s cannot read %q: %s", who, s.File, oneLine(s.FileError))
	case !may:
		return warn("give bctl the capability DAC_READ_SEARCH (the systemd unit has it), unless all files are readable for this user", "%s could read the examined entries, but has no permission to read files of every owner", who)
	}
	return ok("%s can read the examined entries", who)
}

// hasCapability reports whether this thread may use a capability.
func hasCapability(capability uint) (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("get the capabilities: %w", err)
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0, nil
}

func (d *sourceDoctor) pageCache(context.Context) Finding {
	s := &d.survey
	switch {
	case s.File == "" || s.FileError != nil:
		return skip("no file could be read")
	case s.Uncached:
		return ok("RWF_DONTCACHE works: reading leaves nothing in the page cache")
	case s.Cachestat:
		return ok("no RWF_DONTCACHE (Linux 6.14, ext4, XFS, btrfs); pages are dropped after reading, except those that were cached before (cachestat)")
	}
	return warn("update the kernel to 6.5 or later, or own the files: without it, files that a backup reads stay in the page cache",
		"neither RWF_DONTCACHE nor cachestat works here")
}

func (d *sourceDoctor) traces(context.Context) Finding {
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

func (d *sourceDoctor) attributes(context.Context) Finding {
	s := &d.survey
	switch {
	case s.File == "":
		return skip("there is no file to test")
	case s.XattrError != nil:
		return warn("mount the file system with extended attributes, or let this user read them", "of %q: %s", s.File, oneLine(s.XattrError))
	case d.mount.FileSystem == "nfs":
		return warn("mount it with NFS 4.2, if you need attributes", "NFS 3 has no extended attributes, and ACLs only as the server maps them")
	}
	return ok("extended attributes and ACLs can be read")
}

// changeTimes checks the granularity of times: a change within one granule after a file was read
// cannot be detected.
func (d *sourceDoctor) changeTimes(context.Context) Finding {
	s := &d.survey
	switch {
	case s.Entries < 5:
		return skip("there are too few files")
	case s.Grain >= time.Second:
		return warn("set worker.grain to 2s on its walkers, if its clock is that coarse", "change times are whole seconds")
	}
	return ok("the granularity of change times is %v", s.Grain)
}

// recent is the maximum age of a change that gives information about the filer's clock.
const recent = time.Minute

// clock can detect only a clock that is ahead, because an older change gives no information. It
// writes nothing to find out more.
func (d *sourceDoctor) clock(context.Context) Finding {
	newest := d.survey.Newest
	switch ahead := newest.Sub(d.asked); {
	case newest.IsZero():
		return skip("there are no files")
	case ahead > skewWarns:
		return warn("synchronize the clocks of both machines with NTP", "the file server's clock is ahead of ours by %s or more", duration(ahead))
	case -ahead < recent:
		return ok("the newest change is %s old: the clocks agree, or the file server's is behind by less", duration(ahead))
	}
	return skip("the newest change is %s old, too old to compare the clocks; this check writes nothing", duration(newest.Sub(d.asked)))
}
