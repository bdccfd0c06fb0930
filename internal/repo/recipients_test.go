package repo

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// A changing is a repository whose recipients are changed.
type changing struct {
	*place
	object Object
	keys   keys
	first  *Identity
}

func newChanging(t *testing.T) *changing {
	p := newPlace(t)
	made, err := p.init()
	check(t, err)
	c := &changing{place: p}
	c.object, c.keys.worker, err = Load(t.Context(), p.store, p.index, made.WorkerKeyPath)
	check(t, err)
	c.keys.committer, err = c.object.ReadCommitterKey(made.CommitterKeyPath)
	check(t, err)
	c.first, err = FindIdentity("", c.object.ID, Asker{})
	check(t, err)
	return c
}

// reload reads the object and the recipients in force anew.
func (c *changing) reload() Object {
	c.t.Helper()
	o, err := Check(c.t.Context(), c.store, c.index)
	check(c.t, err)
	check(c.t, o.LoadRecipients(c.t.Context(), c.store))
	return o
}

func (c *changing) change(o *Object, list []Recipient) (seal.WorkerKey, error) {
	return o.ChangeRecipients(c.t.Context(), c.store, list, c.keys.worker, c.keys.committer, time.UnixMilli(1_700_000_000_123))
}

func newRecipient(t *testing.T) (opener *seal.Opener, recipient string) {
	t.Helper()
	identity, recipient, err := seal.GenerateIdentity()
	check(t, err)
	opener, err = seal.NewOpener([]byte(identity))
	check(t, err)
	return opener, recipient
}

func TestRecipientsChange(t *testing.T) {
	c := newChanging(t)
	second, key := newRecipient(t)
	before := c.reload()
	if force := before.InForce(); force.Sequence != 0 || len(force.List) != 1 || !force.List[0].Since.Equal(before.Created) {
		t.Fatalf("first recipients: %+v", force)
	}
	added := Recipient{Key: key, Since: time.UnixMilli(1_700_000_000_123).UTC(), Label: "Zoë’s laptop"}
	worker, err := c.change(&before, append(before.InForce().List, added))
	check(t, err)
	if !slices.Equal(worker.Recipients, before.Recipients) || len(worker.Recipients) != 2 || worker.Dedup != c.keys.worker.Dedup {
		t.Errorf("worker key for %v", worker.Recipients)
	}
	after := c.reload()
	if force := after.InForce(); force.Sequence != 1 || len(force.List) != 2 || force.List[1] != added || !slices.Equal(after.Recipients, force.Keys()) {
		t.Errorf("in force: %+v", force)
	}
	for who, opener := range map[string]*seal.Opener{"the first": c.first.Opener, "the second": second} {
		sealed, err := after.WorkerKey(opener)
		check(t, err)
		committer, err := after.CommitterKey(opener)
		check(t, err)
		if sealed.Dedup != worker.Dedup || !slices.Equal(sealed.Recipients, worker.Recipients) || committer.Signing.Signer() != after.Signer() {
			t.Errorf("%s opens other keys", who)
		}
	}
	// Each change is one more statement. A removed identity opens the keys of its time.
	_, err = c.change(&after, after.InForce().List[:1])
	check(t, err)
	last := c.reload()
	if len(last.Recipients) != 1 || last.InForce().Sequence != 2 {
		t.Errorf("in force: %+v", last.InForce())
	}
	if _, err := last.WorkerKey(second); err != nil {
		t.Errorf("the removed identity: %v", err)
	}
	stranger, _ := newRecipient(t)
	if _, err := last.WorkerKey(stranger); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("a stranger: %v", err)
	}
}

// Of two changes at the same time, one is refused.
func TestRecipientsChangeTwiceAtOnce(t *testing.T) {
	c := newChanging(t)
	one, other := c.reload(), c.reload()
	_, key := newRecipient(t)
	_, err := c.change(&one, append(one.InForce().List, Recipient{Key: key, Since: time.UnixMilli(1)}))
	check(t, err)
	if _, err := c.change(&other, other.InForce().List); !errors.Is(err, ErrChanged) {
		t.Errorf("the second change: %v", err)
	}
	if now := c.reload(); len(now.Recipients) != 2 {
		t.Errorf("in force: %v", now.Recipients)
	}
}

// Who may only write to the store cannot change the recipients, and cannot prevent a change (I17).
func TestForgedRecipientsAreIgnored(t *testing.T) {
	c := newChanging(t)
	o := c.reload()
	thief := seal.NewSigningKey()
	forged := o.InForce()
	_, forged.List[0].Key = newRecipient(t)
	put := func(sequence int64, text []byte) {
		t.Helper()
		check(t, c.store.PutNew(t.Context(), store.RecipientsName(sequence), text))
	}
	forged.Sequence = 1
	text, err := forged.encode(o.ID, thief)
	check(t, err)
	put(1, text)
	put(2, []byte("nonsense"))
	put(3, bytes.Repeat([]byte("x"), maxObjectBytes+1))
	put(math.MaxInt64, text)
	check(t, c.store.PutNew(t.Context(), store.RecipientsPrefix+"x", text))
	now := c.reload()
	if !slices.Equal(now.Recipients, o.Recipients) || now.InForce().Sequence != 0 {
		t.Fatalf("in force: %+v", now.InForce())
	}
	_, err = c.change(&now, now.InForce().List)
	check(t, err)
	if after := c.reload(); after.InForce().Sequence != 4 {
		t.Errorf("the change has sequence %d", after.InForce().Sequence)
	}
	// A signed statement under another sequence is none either: it would bring former recipients
	// back.
	signed, err := c.store.Get(t.Context(), store.RecipientsName(4), maxObjectBytes)
	check(t, err)
	put(5, signed)
	if after := c.reload(); after.InForce().Sequence != 4 {
		t.Errorf("a copy under another name counts: %d", after.InForce().Sequence)
	}
}

// The statement is lost, or is put and then the request fails. Both times the recipients in force
// are those that the store says, and the command can be repeated.
func TestRecipientsAfterAFault(t *testing.T) {
	for _, applied := range []bool{false, true} {
		c := newChanging(t)
		o := c.reload()
		_, key := newRecipient(t)
		list := append(o.InForce().List, Recipient{Key: key, Since: time.UnixMilli(1)})
		faulty := &faultyStep{Store: c.store, step: "put", applied: applied}
		if _, err := o.ChangeRecipients(t.Context(), faulty.store(), list, c.keys.worker, c.keys.committer, time.Now()); !errors.Is(err, errFault) {
			t.Fatal(err)
		}
		now := c.reload()
		if got := len(now.Recipients); got != map[bool]int{false: 1, true: 2}[applied] {
			t.Errorf("applied %v: %d recipients", applied, got)
		}
		if !applied {
			_, err := c.change(&now, list)
			check(t, err)
		}
	}
}

func TestRecipientsThatAreRefused(t *testing.T) {
	c := newChanging(t)
	o := c.reload()
	first := o.InForce().List[0]
	label := func(text string) []Recipient {
		return []Recipient{{Key: first.Key, Since: first.Since, Label: text}}
	}
	for what, list := range map[string][]Recipient{
		"none":             {},
		"twice":            {first, first},
		"no recipient":     {{Key: "age1foo", Since: first.Since}},
		"an identity":      {{Key: "AGE-SECRET-KEY-1", Since: first.Since}},
		"a long label":     label(strings.Repeat("x", maxLabelRunes+1)),
		"a space":          label(" x"),
		"a line":           label("a\nb"),
		"a control":        label("a\x1b[0m"),
		"not UTF-8":        label("a\xff"),
		"an invisible one": label("a\u200bb"),
	} {
		if _, err := c.change(&o, list); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if now := c.reload(); now.InForce().Sequence != 0 {
		t.Error("something was put")
	}
}

// The repository object of init counts in an index that was lost, with the recipients in force.
func TestInitFinishesWithTheRecipientsInForce(t *testing.T) {
	c := newChanging(t)
	o := c.reload()
	_, key := newRecipient(t)
	_, err := c.change(&o, append(o.InForce().List, Recipient{Key: key, Since: time.UnixMilli(1)}))
	check(t, err)
	c.newIndex("another.db")
	_, err = c.init()
	check(t, err)
	r, err := c.index.Repository(context.Background())
	check(t, err)
	if !slices.Equal(r.Recipients, o.Recipients) {
		t.Errorf("the index has %v", r.Recipients)
	}
}

// An accepted statement is the only text of its content.
func FuzzRecipients(f *testing.F) {
	var id backup.RepositoryID
	id[0] = 1
	key := seal.NewSigningKey()
	good := Recipients{Sequence: 7, Made: time.UnixMilli(5).UTC(), SealedWorkerKey: []byte("w"), SealedCommitterKey: []byte("c"), List: []Recipient{
		{Key: "age1a", Since: time.UnixMilli(5).UTC(), Label: "a b"}, {Key: "age1b", Since: time.UnixMilli(6).UTC()},
	}}
	text, err := good.encode(id, key)
	if err != nil {
		f.Fatal(err)
	}
	body, _, _ := bytes.Cut(text, []byte("signature "))
	f.Add(string(body))
	f.Add(strings.Replace(string(body), "age1a", "age1b", 1))
	f.Add(strings.Replace(string(body), " a b", " ", 1))
	f.Fuzz(func(t *testing.T, body string) {
		signature := key.Sign(id, store.RecipientsName(7), []byte(body))
		text := []byte(body + "signature " + hex.EncodeToString(signature) + "\n")
		r, err := parseRecipients(text, id, 7, key.Signer())
		if err != nil {
			return
		}
		again, err := r.encode(id, key)
		if err != nil || !bytes.Equal(again, text) {
			t.Errorf("%q is another text of %q: %v", text, again, err)
		}
	})
}

// Init does not report success unless the files that it wrote restore.
func TestInitProvesARestore(t *testing.T) {
	p := newPlace(t)
	p.option.IdentityPath = p.dir + "/identity.txt"
	identity, _, err := seal.GenerateIdentity()
	check(t, err)
	_, other, err := seal.GenerateIdentity()
	check(t, err)
	// The comment is believed for the recipient, so it must be tested.
	check(t, writeNew(p.option.IdentityPath, []byte("# public key: "+other+"\n"+identity+"\n")))
	if _, err := p.init(); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("init with an identity of another recipient: %v", err)
	}
	if _, err := ReadObject(t.Context(), p.store); !errors.Is(err, backup.ErrNoRepository) {
		t.Errorf("the store has a repository: %v", err)
	}
}

// prove reads the files again: what is in memory proves nothing.
func TestProve(t *testing.T) {
	c := newChanging(t)
	text, err := c.store.Get(t.Context(), store.ConfigName, maxObjectBytes)
	check(t, err)
	made := Created{IdentityPath: c.first.Path, WorkerKeyPath: c.option.WorkerKeyPath}
	check(t, prove(text, made, Asker{}))

	other := c.keys.worker
	_, key := newRecipient(t)
	other.Recipients = []string{key}
	check(t, ReplaceWorkerKey(made.WorkerKeyPath, other))
	if err := prove(text, made, Asker{}); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("a worker key for others: %v", err)
	}
	check(t, ReplaceWorkerKey(made.WorkerKeyPath, c.keys.worker))
	identity, _, err := seal.GenerateIdentity()
	check(t, err)
	check(t, ReplaceFile(made.IdentityPath, []byte(identity+"\n")))
	if err := prove(text, made, Asker{}); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("another identity: %v", err)
	}
}
