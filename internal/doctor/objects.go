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
func (d *objectDoctor) object(ctx context.Context) Finding {
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
		return failWith("grant it permission to put objects (bctl deploy init writes policies)", denied)
	}
	return skip("%s has no permission to put test objects", d.p.whom())
}

// storeFailure returns advice for an error of the store.
func storeFailure(err error) Finding {
	switch {
	case errors.Is(err, store.ErrFull):
		return failWith("free space", err)
	case errors.Is(err, backup.ErrNoRepository):
		return failWith("create the bucket or directory, or correct store.url", err)
	case errors.Is(err, fs.ErrPermission):
		return failWith("grant the permission to this user or these credentials", err)
	case errors.Is(err, syscall.EROFS):
		return failWith("mount it read-write", err)
	case errors.Is(err, backup.ErrUnavailable):
		return failWith("read the store's log, and check the network", err)
	}
	return failWith("read the store's log", err)
}

// read reads the whole object, and parts of it.
func (d *objectDoctor) read(ctx context.Context) Finding {
	whole, err := d.s.Get(ctx, d.name, smallBytes)
	if err != nil {
		return storeFailure(err)
	}
	if !bytes.Equal(whole, d.data) {
		return fail("do not use this store", "it returns bytes that differ from those stored")
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
			return fail("do not use this store, or the proxy in front of it", "it returns wrong bytes for a range")
		}
	}
	return ok("an object is returned as it was stored, whole and in ranges")
}

// listed lists the objects immediately after the put.
func (d *objectDoctor) listed(ctx context.Context) Finding {
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
				return fail("do not use this store", "the listing reports %d bytes for the object, which has %d", o.SizeBytes, smallBytes)
			}
		}
	}
	if !found {
		return fail("do not use this store: objects missing from listings would count as lost", "the object is not listed after it was stored")
	}
	return ok("an object is listed immediately after the put")
}

// slowObject is the limit for small requests: a restore makes one per frame.
const slowObject = 500 * time.Millisecond

func (d *objectDoctor) latency(ctx context.Context) Finding {
	var times []time.Duration
	for range 5 {
		begin := time.Now()
		if _, err := d.s.GetRange(ctx, nil, d.name, 0, 1024); err != nil {
			return storeFailure(err)
		}
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	text := fmt.Sprintf("%s to put %s, %s to get 1 KiB (median)", duration(d.put), size(smallBytes), duration(times[len(times)/2]))
	if max(d.put, times[len(times)/2]) > slowObject {
		return warn("use a store that is closer, or raise worker.batches", "%s", text)
	}
	return ok("%s", text)
}

// slowStore is the expected speed of one upload in bytes per second; several run concurrently.
const slowStore = 4 << 20

func (d *objectDoctor) throughput(ctx context.Context) Finding {
	if !d.deletable && !d.p.Throughput {
		return skip("%s would remain, because deleting is not allowed; --throughput tests it nevertheless", size(largeBytes))
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
		return fail("do not use this store", "it returns bytes that differ from those stored")
	}
	rate := func(d time.Duration) uint64 { return uint64(largeBytes / max(d.Seconds(), 1e-6)) }
	text := fmt.Sprintf("put %s at %s/s, got it at %s/s", size(largeBytes), size(rate(put)), size(rate(took)))
	if rate(put) < slowStore {
		return warn("find out what is slow between this machine and the store", "%s", text)
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
func (d *objectDoctor) tidy(ctx context.Context) Finding {
	if len(d.left) == 0 {
		return ok("nothing to delete")
	}
	left := d.left
	d.left = nil
	var remains []string
	for _, name := range left {
		deleted := d.s.Delete(ctx, name)
		switch _, err := d.s.Stat(ctx, name); {
		case deleted == nil && err == nil:
			return fail("find out what protects objects there", "%s was deleted, but still exists", name)
		case deleted != nil && !errors.Is(err, backup.ErrNotFound):
			// Otherwise it never existed, because the put had failed.
			remains = append(remains, name)
		}
	}
	if len(remains) > 0 {
		return ok("deleting is refused, as it should be; these objects remain, which belong to no backup: %s", strings.Join(remains, ", "))
	}
	return ok("%s deleted", plural(len(left), "object"))
}

// object is the check that puts the object.
const object = "store.object"

// addObjectChecks adds the checks that need only a store. addOwn adds the adapter's own checks of
// the object.
func (d *objectDoctor) addObjectChecks(g *Group, needs string, addOwn func()) {
	g.add(object, d.object, needs)
	addOwn()
	g.add("store.read", d.read, object)
	g.add("store.listed", d.listed, object)
	g.add("store.latency", d.latency, object)
	g.add("store.throughput", d.throughput, object).Timeout = 2 * time.Minute
	g.add("store.tidy", d.tidy, needs)
}
