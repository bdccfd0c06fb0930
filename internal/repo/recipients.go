package repo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/keytext"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

const (
	recipientsTitle = "bctl-recipients"
	maxLabelRunes   = 64
)

// A Recipient is a public key to which the repository is sealed.
type Recipient struct {
	Key   string    // an age recipient
	Since time.Time // since when it has been a recipient without interruption
	Label string    // a text for people; may be empty
}

// Recipients is a statement in the store of the recipients in force. It has the worker key and the
// committer key, sealed to them. It is signed by the committer key.
//
// The repository object, which never changes, states the first recipients. Each change adds a
// statement with the next sequence. The one with the greatest sequence counts.
type Recipients struct {
	Sequence           int64 // 0: that of the repository object
	Made               time.Time
	List               []Recipient
	SealedWorkerKey    []byte
	SealedCommitterKey []byte
}

// Keys returns the recipients without their labels.
func (r *Recipients) Keys() []string {
	keys := make([]string, len(r.List))
	for i := range r.List {
		keys[i] = r.List[i].Key
	}
	return keys
}

// CheckLabel returns an error that wraps backup.ErrInvalid unless a label has one form as a text:
// up to 64 printable characters, without spaces at its ends.
func CheckLabel(label string) error {
	printable := func(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }
	if utf8.RuneCountInString(label) > maxLabelRunes || strings.TrimSpace(label) != label ||
		strings.ContainsFunc(label, func(r rune) bool { return !printable(r) }) {
		return fmt.Errorf("label %q: a label has up to %d printable characters: %w", label, maxLabelRunes, backup.ErrInvalid)
	}
	return nil
}

// encode returns the text of the statement, which docs/formats/keys.md describes. It fails with
// backup.ErrInvalid for a statement that parseRecipients would refuse.
func (r *Recipients) encode(repository backup.RepositoryID, key seal.SigningKey) ([]byte, error) {
	signer := key.Signer()
	w := keytext.NewWriter(recipientsTitle)
	w.Hex("repository", repository[:])
	w.Text("sequence", fmt.Sprintf("%016x", r.Sequence))
	w.Millis("made", r.Made)
	for _, to := range r.List {
		text := to.Key + " " + keytext.FormatMillis(to.Since)
		if to.Label != "" {
			text += " " + to.Label
		}
		w.Text("recipient", text)
	}
	w.Hex("signer", signer[:])
	w.Base64("worker-key", r.SealedWorkerKey)
	w.Base64("committer-key", r.SealedCommitterKey)
	w.Hex("signature", key.Sign(repository, store.RecipientsName(r.Sequence), w.Bytes()))
	if _, err := parseRecipients(w.Bytes(), repository, r.Sequence, signer); err != nil {
		return nil, fmt.Errorf("%w: %w", err, backup.ErrInvalid)
	}
	return w.Bytes(), nil
}

// parseRecipients parses untrusted bytes, the object with the given sequence, and verifies that the
// signer has signed them. Errors wrap backup.ErrCorrupt, or keytext.ErrVersion.
func parseRecipients(data []byte, repository backup.RepositoryID, sequence int64, signer seal.Signer) (Recipients, error) {
	var id backup.RepositoryID
	var named seal.Signer
	var signature [seal.SignatureBytes]byte
	out := Recipients{Sequence: sequence}
	r := keytext.NewReader("statement of recipients", recipientsTitle, data, maxObjectBytes)
	r.Hex("repository", id[:])
	if got := r.Text("sequence"); got != fmt.Sprintf("%016x", sequence) {
		r.Fail("it has the sequence %.20q", got)
	}
	out.Made = r.Millis("made")
	lines := r.Repeated("recipient", seal.MaxRecipients)
	if n := len(lines); n == 0 || n > seal.MaxRecipients {
		r.Fail("%d recipients", n)
	}
	r.Hex("signer", named[:])
	out.SealedWorkerKey, out.SealedCommitterKey = r.Base64("worker-key"), r.Base64("committer-key")
	signed := r.Before()
	r.Hex("signature", signature[:])
	r.End()
	for _, line := range lines {
		to, err := parseRecipientLine(line)
		if err != nil || slices.Contains(out.Keys(), to.Key) {
			r.Fail("no valid line %q", "recipient")
		}
		out.List = append(out.List, to)
	}
	switch err := r.Err(); {
	case errors.Is(err, keytext.ErrVersion):
		return Recipients{}, err
	case err != nil:
		return Recipients{}, fmt.Errorf("%w: %w", err, backup.ErrCorrupt)
	case id != repository || named != signer:
		return Recipients{}, fmt.Errorf("statement of recipients of repository %v by signer %.8s: %w", id, named, backup.ErrCorrupt)
	}
	return out, signer.Verify(repository, store.RecipientsName(sequence), signed, signature[:])
}

// parseRecipientLine parses the value of a line: the key, the time, and the label if there is one.
func parseRecipientLine(line string) (to Recipient, err error) {
	key, rest, _ := strings.Cut(line, " ")
	since, label, labeled := strings.Cut(rest, " ")
	to = Recipient{Key: key, Label: label}
	var ok bool
	if to.Since, ok = keytext.ParseMillis(since); !ok || key == "" || labeled && label == "" {
		return to, backup.ErrInvalid
	}
	return to, CheckLabel(label)
}

// initial returns the statement of the repository object.
func (o *Object) initial() Recipients {
	r := Recipients{Made: o.Created, SealedWorkerKey: o.SealedWorkerKey, SealedCommitterKey: o.SealedCommitterKey}
	keys := o.first
	if keys == nil {
		keys = o.Recipients
	}
	for _, key := range keys {
		r.List = append(r.List, Recipient{Key: key, Since: o.Created})
	}
	return r
}

// InForce returns the recipients in force. Before the first change these are those of the object.
func (o *Object) InForce() Recipients {
	if o.inForce != nil {
		return *o.inForce
	}
	return o.initial()
}

// LoadRecipients reads which recipients are in force, and makes the object's Recipients these. The
// caller has checked the object's signer. Objects that the signer has not signed are ignored (I17):
// who may only write to the store cannot change the recipients. A statement of a later version is
// an error, because it counts.
func (o *Object) LoadRecipients(ctx context.Context, s store.Store) error {
	changes, err := sequences(ctx, s, store.RecipientsPrefix, store.ParseRecipientsName)
	if err != nil {
		return fmt.Errorf("read the recipients in force: %w", err)
	}
	for i, sequence := range slices.Backward(changes) {
		r, err := o.readRecipients(ctx, s, sequence)
		if errors.Is(err, backup.ErrCorrupt) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the recipients in force: %w", err)
		}
		o.take(r)
		o.former = o.earlier(ctx, s, changes[:i])
		return nil
	}
	return nil
}

// readRecipients reads a statement. A statement that the signer has not signed is
// backup.ErrCorrupt.
func (o *Object) readRecipients(ctx context.Context, s store.Store, sequence int64) (Recipients, error) {
	data, err := s.Get(ctx, store.RecipientsName(sequence), maxObjectBytes)
	if errors.Is(err, backup.ErrInvalid) {
		return Recipients{}, fmt.Errorf("larger than any statement: %w", backup.ErrCorrupt)
	}
	if err != nil {
		return Recipients{}, err
	}
	r, err := parseRecipients(data, o.ID, sequence, o.Signer())
	if err != nil {
		err = fmt.Errorf("%s: %w", store.RecipientsName(sequence), err)
	}
	return r, err
}

// earlier yields the statements with these sequences, last one first, and then that of the object.
func (o *Object) earlier(ctx context.Context, s store.Store, sequences []int64) iter.Seq2[Recipients, error] {
	return func(yield func(Recipients, error) bool) {
		for _, sequence := range slices.Backward(sequences) {
			r, err := o.readRecipients(ctx, s, sequence)
			if errors.Is(err, backup.ErrCorrupt) {
				continue
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
		yield(o.initial(), nil)
	}
}

// take makes r the statement in force.
func (o *Object) take(r Recipients) {
	if o.first == nil {
		o.first = o.Recipients
	}
	o.inForce = &r
	o.Recipients = r.Keys()
}

// ErrChanged: another process has changed the recipients at the same time.
var ErrChanged = errors.New("the recipients were changed by another command at the same time: run this command again")

// ChangeRecipients puts a statement of the recipients into the store, after which they are in force
// there, and makes the object's Recipients these. The worker key must be the repository's; its
// Recipients are replaced. It fails with ErrChanged if another change came first.
func (o *Object) ChangeRecipients(ctx context.Context, s store.Store, list []Recipient, worker seal.WorkerKey, committer seal.CommitterKey, now time.Time) (seal.WorkerKey, error) {
	r := Recipients{Sequence: o.InForce().Sequence + 1, Made: now.UTC().Truncate(time.Millisecond), List: list}
	for _, to := range list {
		if err := CheckLabel(to.Label); err != nil {
			return worker, err
		}
	}
	worker.Recipients = r.Keys()
	sealer, err := seal.NewSealer(worker.Recipients)
	if err != nil {
		return worker, err
	}
	if r.SealedWorkerKey, err = sealKey(sealer, worker); err != nil {
		return worker, err
	}
	if r.SealedCommitterKey, err = sealKey(sealer, committer); err != nil {
		return worker, err
	}
	for range maxForged {
		text, err := r.encode(o.ID, committer.Signing)
		if err != nil {
			return worker, err
		}
		// From here on the recipients are in force. The index and the worker key follow; a command
		// that finds them different updates them.
		err = s.PutNew(ctx, store.RecipientsName(r.Sequence), text)
		if err == nil {
			o.take(r)
			return worker, nil
		}
		if !errors.Is(err, backup.ErrExists) {
			return worker, err
		}
		if forged, err := o.isForged(ctx, s, r.Sequence); err != nil || !forged {
			return worker, cmp.Or(err, ErrChanged)
		}
		r.Sequence++
	}
	return worker, fmt.Errorf("the store has %d objects %s… that nobody has signed: remove them: %w", maxForged, store.RecipientsPrefix, backup.ErrCorrupt)
}

// maxForged bounds how many names of statements may be taken by objects that are none.
const maxForged = 100

// isForged reports whether the name of a statement is taken by an object that is none.
func (o *Object) isForged(ctx context.Context, s store.Store, sequence int64) (bool, error) {
	_, err := o.readRecipients(ctx, s, sequence)
	if errors.Is(err, backup.ErrCorrupt) {
		return true, nil
	}
	return false, err
}

// VerifyRecipients returns an error that wraps backup.ErrCorrupt or keytext.ErrVersion unless data
// is the statement of recipients with the given name, signed by signer.
func VerifyRecipients(data []byte, name string, repository backup.RepositoryID, signer seal.Signer) error {
	sequence, ok := store.ParseRecipientsName(name)
	if !ok {
		return fmt.Errorf("%s: not the name of a statement of recipients: %w", name, backup.ErrCorrupt)
	}
	if _, err := parseRecipients(data, repository, sequence, signer); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
