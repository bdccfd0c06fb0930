package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/s3store"
)

// An s3Doctor checks an S3 store.
type s3Doctor struct {
	objectDoctor
	s3      *s3store.Store
	options s3store.Options
	answer  s3store.Answer
	damages s3store.Promise // the server's reaction to a wrong checksum
}

// noSnapshot is part of the name of an object that belongs to no snapshot.
var noSnapshot backup.SnapshotID

func s3Group(p *Parts) Group {
	d := &s3Doctor{objectDoctor: objectDoctor{p: p}}
	switch p.Role {
	case "", installation.Committer:
		d.places = []string{"doctor/" + backup.NewPackID().String()}
	case installation.Reader:
		// The second object cannot be deleted. It has a new name each time: a store that is full
		// accepts a put of an object that it has.
		d.places = []string{"doctor/" + backup.NewPackID().String(), store.PackName(noSnapshot, backup.NewPackID())}
	}
	g := Group{Name: "store", Close: d.close}
	const server, credentials = "store.server", "store.credentials"
	g.add(server, d.server)
	g.add("store.tls", func(context.Context) Finding {
		return secured(d.answer.TLS, isLocal(d.options.Endpoint), time.Now())
	}, server)
	g.add("store.clock", d.clock, server)
	g.add(credentials, d.credentials, server)
	if p.Role != installation.Walker {
		g.add("store.may put packs", func(ctx context.Context) Finding {
			return d.mayPut(ctx, store.PackName(noSnapshot, backup.NewPackID()), installation.Reader, installation.Pruner)
		}, credentials)
		g.add("store.may put segments", func(ctx context.Context) Finding {
			return d.mayPut(ctx, store.SegmentName(noSnapshot, backup.NewPackID(), 0), installation.Committer)
		}, credentials)
		g.add("store.may list", d.mayList, credentials)
		g.add("store.may delete", d.mayDelete, credentials)
		g.add("store.object lock", d.objectLock, credentials)
		d.addObjectChecks(&g, credentials, func() {
			g.add("store.overwrite", d.overwrite, object)
			g.add("store.checksum", d.checksum, object)
		})
	}
	return g
}

// isLocal reports whether an address belongs to this machine.
func isLocal(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func (d *s3Doctor) server(ctx context.Context) Finding {
	o, err := d.p.S3()
	if err == nil {
		o.RetryFor = -1 // the doctor reports failures instead of waiting
		d.options = o
		d.s3, err = s3store.Open(ctx, o)
	}
	if err != nil {
		return failWith("correct the settings of store", err)
	}
	d.s = d.s3
	if d.answer, err = d.s3.Reach(ctx); err != nil {
		return unreachable(err, "the store", "store.ca_file")
	}
	who := d.answer.Server
	if who == "" {
		who = "a server that does not identify itself"
	}
	return ok("%s answers in %s: %s", d.options.Endpoint, duration(d.answer.Received.Sub(d.answer.Sent)), who)
}

func (d *s3Doctor) clock(context.Context) Finding {
	if d.answer.Date.IsZero() {
		return skip("the server does not report the time")
	}
	return skew(d.answer.Date, d.answer.Sent, d.answer.Received, time.Second)
}

// credentials requests the repository object, which every role except reader and walker needs.
func (d *s3Doctor) credentials(ctx context.Context) Finding {
	object, err := repo.ReadObject(ctx, d.s)
	refusal, refused := s3store.Refused(err)
	switch {
	case err == nil:
		return d.p.sameRepository(ctx, object.ID, fmt.Sprintf("accepted; %v holds repository %v", d.s3, object.ID))
	case refused && refusal.Known && !d.p.is(installation.Operator, installation.Committer):
		return ok("accepted; reading the repository object is not allowed, and %s does not need it", d.p.whom())
	case refused && refusal.Known:
		return fail("grant it permission to get objects (bctl deploy init writes policies)", "the repository object: %s", refusal.Reason)
	case refused:
		return fail("correct the credentials in the settings of store, and the clock", "%s", refusal.Reason)
	case errors.Is(err, backup.ErrNoRepository) && d.bucket(ctx):
		if id, known := d.p.indexed(ctx); known {
			return fail("correct store.url: until then, neither backup nor restore is possible. If the store is lost: docs/disaster-recovery.md",
				"accepted; the bucket exists, but contains no repository there, and the index is of repository %v", id)
		}
		return warn("bctl init", "accepted; the bucket exists, but contains no repository")
	case errors.Is(err, backup.ErrNoRepository):
		return failWith("create the bucket, or correct store.url", err)
	}
	return storeFailure(err)
}

// bucket reports whether the bucket exists: the errors for a missing repository and a missing
// bucket are the same.
func (d *s3Doctor) bucket(ctx context.Context) bool {
	_, err := d.s3.Get(ctx, store.ConfigName, 1<<20)
	return errors.Is(err, backup.ErrNotFound)
}

// mayPut tests the permission to put an object with a wrong checksum, which the server refuses
// after checking permissions.
func (d *s3Doctor) mayPut(ctx context.Context, name string, who ...installation.Role) Finding {
	needed := d.p.is(who...)
	promise, err := d.s3.Damages(ctx, name, []byte("bctl doctor"))
	switch {
	case errors.Is(err, fs.ErrPermission) && needed:
		return fail("grant it permission to put objects there (bctl deploy init writes policies)", "not allowed")
	case errors.Is(err, fs.ErrPermission):
		return ok("refused, as it should be")
	case err != nil:
		return storeFailure(err)
	}
	if promise == s3store.Broken {
		d.left = append(d.left, name)
	}
	if promise == s3store.Unknown {
		return skip("the server does not support checksums, so this cannot be tested without storing an object")
	}
	d.damages = promise
	if !needed {
		return warn("restrict it to the permissions of the role (bctl deploy init writes policies)", "%s may put objects there, but does not need to", d.p.whom())
	}
	return ok("allowed")
}

func (d *s3Doctor) mayList(ctx context.Context) Finding {
	for _, err := range d.s3.List(ctx, store.PacksPrefix) {
		switch {
		case err == nil:
		case errors.Is(err, fs.ErrPermission) && d.p.is(installation.Committer):
			return fail("grant it permission to list the bucket: otherwise a missing pack cannot be distinguished from one without read permission", "not allowed")
		case errors.Is(err, fs.ErrPermission):
			return ok("refused; %s does not need it", d.p.whom())
		default:
			return storeFailure(err)
		}
		break // one is enough
	}
	return ok("allowed")
}

// mayDelete tests the permission to delete, with an object that does not exist. Only the pruner
// deletes.
func (d *s3Doctor) mayDelete(ctx context.Context) Finding {
	err := d.s3.Delete(ctx, store.PackName(noSnapshot, backup.NewPackID()))
	pruner := d.p.Role == installation.Pruner
	switch {
	case errors.Is(err, fs.ErrPermission) && pruner:
		return fail("grant it permission to delete objects (bctl deploy init writes policies)", "not allowed")
	case errors.Is(err, fs.ErrPermission):
		return ok("refused, as it should be")
	case err != nil:
		return storeFailure(err)
	case pruner:
		return ok("allowed")
	}
	const advice = "deny it to all services except the pruner (bctl deploy init writes policies): an intruder in one could delete all backups"
	return warn(advice, "packs may be deleted")
}

// objectLock tests whether the bucket allows objects to be locked, if the settings ask for that.
func (d *s3Doctor) objectLock(ctx context.Context) Finding {
	if d.options.ObjectLock == store.Unlocked {
		return ok("off: every user with the permission can delete objects (store.object_lock)")
	}
	err := d.s3.CheckLock(ctx)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return ok("%s; whether the bucket allows that is not for %s to see", d.options.ObjectLock, d.p.whom())
	case errors.Is(err, backup.ErrInvalid):
		return failWith("use a bucket with object lock, or set store.object_lock to off", err)
	case err != nil:
		return storeFailure(err)
	}
	return ok("%s; the bucket allows it", d.options.ObjectLock)
}

func (d *s3Doctor) overwrite(ctx context.Context) Finding {
	other := make([]byte, smallBytes)
	_, _ = rand.Read(other) // never fails, by its documentation
	promise, err := d.s3.Overwrites(ctx, d.name, other)
	switch {
	case err != nil:
		return storeFailure(err)
	case promise == s3store.Kept:
		return ok("an existing object is not overwritten (If-None-Match)")
	case promise == s3store.Broken:
		d.data = other
		return warn("use a store that supports If-None-Match, or versioning", "it overwrites existing objects: If-None-Match is ignored")
	}
	return warn("use a store that supports If-None-Match, or versioning", "it does not support If-None-Match: existing objects can be overwritten")
}

func (d *s3Doctor) checksum(ctx context.Context) Finding {
	promise, name := d.damages, sibling(d.name)
	if promise == "" {
		var err error
		if promise, err = d.s3.Damages(ctx, name, d.data); err != nil {
			return storeFailure(err)
		}
		if promise == s3store.Broken {
			d.left = append(d.left, name)
		}
	}
	switch promise {
	case s3store.Kept:
		return ok("an upload that arrives damaged is refused (CRC64NVME)")
	case s3store.Broken:
		return warn("use a store that verifies checksums: otherwise damage is found late", "an upload that arrives damaged is stored")
	}
	return warn("use a store that supports CRC64NVME: MD5, which bctl uses otherwise, takes longer", "it does not support CRC64NVME checksums")
}
