package doctor

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// An objectDoctor puts objects into a store and checks the results. The checks of one store share
// it.
type objectDoctor struct {
	p         *Parts
	s         store.Store
	places    []string // possible names for the object, the best first
	name      string   // of the object that was put; empty: none
	data      []byte
	deletable bool          // similar objects may be deleted
	put       time.Duration // duration of the put
	left      []string      // objects that may still exist
}

const (
	smallBytes = 16 << 10
	largeBytes = 8 << 20
)

// object puts an object at the first place where that is allowed.
func (d *objectDoctor) object(ctx context.Context) Result {
	if len(d.places) == 0 {
		return skip("%s stores nothing", d.p.whom())
	}
	d.data = make([]byte, smallBytes)
	// The data is the same each time. Read never fails, according to its documentation.
	_, _ = mathrand.NewChaCha8([32]byte{}).Read(d.data)
	var denied error
	for _, name := range d.places {
		begin := time.Now()
		err := d.s.Put(ctx, name, d.data)
		if errors.Is(err, fs.ErrPermission) {
			denied = err
			continue
		}
		d.left = append(d.left, name)
		if err != nil {
			return storeFailure(err)
		}
		d.name, d.put = name, time.Since(begin)
		d.deletable = d.s.Delete(ctx, sibling(name)) == nil // of an object that does not exist
		return ok("an object of %s is stored", size(smallBytes))
	}
	if slices.ContainsFunc(d.places, func(name string) bool { return strings.HasPrefix(name, store.PacksPrefix) }) || d.p.Role == "" {
		return fail("allow it to put objects (bctl deploy init writes policies)", "%s", oneLine(denied))
	}
	return skip("there is no place where %s may put an object that is none of a backup", d.p.whom())
}

// storeFailure returns advice for an error of the store.
func storeFailure(err error) Result {
	switch {
	case errors.Is(err, store.ErrFull):
		return fail("make space", "%s", oneLine(err))
	case errors.Is(err, backup.ErrNoRepository):
		return fail("make the bucket or directory, or correct store.url", "%s", oneLine(err))
	case errors.Is(err, fs.ErrPermission):
		return fail("allow it to this user or these credentials", "%s", oneLine(err))
	case errors.Is(err, syscall.EROFS):
		return fail("mount it so that it can be written", "%s", oneLine(err))
	case errors.Is(err, backup.ErrUnavailable):
		return fail("look at the store's log, and at the network", "%s", oneLine(err))
	}
	return fail("look at the store's log", "%s", oneLine(err))
}

// read reads the whole object, and parts of it.
func (d *objectDoctor) read(ctx context.Context) Result {
	whole, err := d.s.Get(ctx, d.name, smallBytes)
	if err != nil {
		return storeFailure(err)
	}
	if !bytes.Equal(whole, d.data) {
		return fail("do not use this store", "it returns other bytes than it was given")
	}
	for _, r := range []struct{ offset, length int64 }{{0, 1}, {1000, 4097}, {smallBytes - 1, 1}, {-100, 100}, {-100, 10}} {
		from := r.offset
		if from < 0 {
			from += smallBytes
		}
		got, err := d.s.GetRange(ctx, nil, d.name, r.offset, r.length)
		if err != nil {
			return storeFailure(err)
		}
		if !bytes.Equal(got, d.data[from:from+r.length]) {
			return fail("do not use this store, or whatever is in between", "of a range it returns other bytes")
		}
	}
	return ok("what was stored comes back, whole and in ranges")
}

// listed lists the objects immediately after the put.
func (d *objectDoctor) listed(ctx context.Context) Result {
	found := false
	for o, err := range d.s.List(ctx, d.name) {
		if errors.Is(err, fs.ErrPermission) {
			return skip("listing is not allowed")
		}
		if err != nil {
			return storeFailure(err)
		}
		if o.Name == d.name {
			found = true
			if o.SizeBytes != smallBytes {
				return fail("do not use this store", "the object has %d bytes in the list, and %d in truth", o.SizeBytes, smallBytes)
			}
		}
	}
	if !found {
		return fail("do not use this store: what lists miss would be taken for lost", "the object is not listed after it was stored")
	}
	return ok("an object is listed as soon as it is stored")
}

// slowObject is the limit for small requests: a restore makes one per frame.
const slowObject = 500 * time.Millisecond

func (d *objectDoctor) latency(ctx context.Context) Result {
	var times []time.Duration
	for range 5 {
		begin := time.Now()
		if _, err := d.s.GetRange(ctx, nil, d.name, 0, 1024); err != nil {
			return storeFailure(err)
		}
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	text := fmt.Sprintf("%s to put %s, %s to get a part (median)", duration(d.put), size(smallBytes), duration(times[len(times)/2]))
	if max(d.put, times[len(times)/2]) > slowObject {
		return warn("bring the store closer, or raise what is done at a time (worker.batches)", "%s", text)
	}
	return ok("%s", text)
}

// slowStore is the expected speed of one upload in bytes per second; several run concurrently.
const slowStore = 4 << 20

func (d *objectDoctor) throughput(ctx context.Context) Result {
	if !d.deletable && !d.p.Throughput {
		return skip("%s would remain, because deleting is not allowed; --throughput tries it all the same", size(largeBytes))
	}
	data := make([]byte, largeBytes)
	_, _ = rand.Read(data) // never fails, by its documentation
	name := sibling(d.name)
	d.left = append(d.left, name)
	begin := time.Now()
	if err := d.s.Put(ctx, name, data); err != nil {
		return storeFailure(err)
	}
	put := time.Since(begin)
	begin = time.Now()
	got, err := d.s.Get(ctx, name, largeBytes)
	if err != nil {
		return storeFailure(err)
	}
	took := time.Since(begin)
	if !bytes.Equal(got, data) {
		return fail("do not use this store", "it returns other bytes than it was given")
	}
	rate := func(d time.Duration) uint64 { return uint64(largeBytes / max(d.Seconds(), 1e-6)) }
	text := fmt.Sprintf("%s put at %s/s, got at %s/s", size(largeBytes), size(rate(put)), size(rate(took)))
	if rate(put) < slowStore {
		return warn("find out what is slow between here and the store", "%s", text)
	}
	return ok("%s", text)
}

// sibling returns another name in the same place, of the same form.
func sibling(name string) string {
	cut := strings.LastIndexAny(name, "/-") + 1
	return name[:cut] + backup.NewPackID().String()
}

// close deletes the objects that tidy has not reached, because the doctor was interrupted, and
// closes the store.
func (d *objectDoctor) close() {
	if d.s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, name := range d.left {
		_ = d.s.Delete(ctx, name) // the remaining objects do not belong to a backup
	}
	_ = d.s.Close() // there are no requests in progress
}

// tidy deletes the objects that were put, and reports those that remain.
func (d *objectDoctor) tidy(ctx context.Context) Result {
	if len(d.left) == 0 {
		return ok("nothing was left")
	}
	left := d.left
	d.left = nil
	var remains []string
	for _, name := range left {
		deleted := d.s.Delete(ctx, name)
		switch _, err := d.s.Stat(ctx, name); {
		case deleted == nil && err == nil:
			return fail("look at what protects objects there", "%s was deleted, and is there still", name)
		case deleted != nil && !errors.Is(err, backup.ErrNotFound):
			// Otherwise it never existed, because the put had failed.
			remains = append(remains, name)
		}
	}
	if len(remains) > 0 {
		return ok("deleting is not allowed, as it should be; what remains is part of no backup: %s", strings.Join(remains, ", "))
	}
	return ok("%s deleted", plural(len(left), "object"))
}

// addObjectChecks adds the checks that need only a store. own are the adapter's own checks.
func (d *objectDoctor) addObjectChecks(g *Group, needs string, own ...Check) {
	add := func(id, needs string, timeout time.Duration, run func(context.Context) Result) {
		g.Checks = append(g.Checks, Check{ID: id, Needs: []string{needs}, Timeout: timeout, Run: run})
	}
	const object = "store.object"
	add(object, needs, 0, d.object)
	g.Checks = append(g.Checks, own...)
	add("store.read", object, 0, d.read)
	add("store.listed", object, 0, d.listed)
	add("store.latency", object, 0, d.latency)
	add("store.throughput", object, 2*time.Minute, d.throughput)
	add("store.tidy", needs, 0, d.tidy)
}
