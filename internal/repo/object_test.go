package repo

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv/golden"
)

var update = flag.Bool("update", false, "write golden files")

var goldenRepository = backup.Repository{
	ID: backup.RepositoryID([]byte("golden repositor")), Version: 1, Created: time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC),
	Chunker: "fastcdc-v1.0.0-1MiB", Codec: "zstd-1",
}

// TestWriteGolden writes what Init creates, except for the random ids.
func TestWriteGolden(t *testing.T) {
	if !*update {
		t.Skip("only with -update")
	}
	cryptotest.SetGlobalRandom(t, 7)
	id := goldenRepository.ID
	committer := seal.CommitterKey{Repository: id, Signing: seal.NewSigningKey()}
	signer := committer.Signing.Signer()
	check(t, os.MkdirAll(golden.Dir, 0o755))
	identity := filepath.Join(golden.Dir, "identity.txt")
	recipient, err := writeIdentity(identity, id, signer)
	check(t, err)
	check(t, os.Chmod(identity, 0o644))
	_, other, err := seal.GenerateIdentity()
	check(t, err)
	worker := seal.WorkerKey{Repository: id, Dedup: seal.NewDedupKey(), Signer: signer, Recipients: []string{recipient, other}}
	sealer, err := seal.NewSealer(worker.Recipients)
	check(t, err)
	o := Object{Repository: goldenRepository}
	o.Recipients, o.Repository.Signer = worker.Recipients, signer
	o.SealedWorkerKey, err = sealKey(sealer, worker)
	check(t, err)
	o.SealedCommitterKey, err = sealKey(sealer, committer)
	check(t, err)
	text, err := o.encode(committer.Signing)
	check(t, err)
	workerText, err := worker.MarshalText()
	check(t, err)
	committerText, err := committer.MarshalText()
	check(t, err)
	for name, data := range map[string][]byte{"repository": text, "worker.key": workerText, "committer.key": committerText} {
		check(t, os.WriteFile(filepath.Join(golden.Dir, name), data, 0o644))
	}
}

func TestReadGolden(t *testing.T) {
	o, err := parseObject(golden.Read(t, "repository"))
	check(t, err)
	worker, err := ReadWorkerKey(filepath.Join(golden.Dir, "worker.key"), o.ID)
	check(t, err)
	committer, err := ReadCommitterKey(filepath.Join(golden.Dir, "committer.key"), o.ID)
	check(t, err)
	want := goldenRepository
	want.Recipients, want.Signer = worker.Recipients, committer.Signing.Signer()
	if !reflect.DeepEqual(o.Repository, want) {
		t.Errorf("got %+v\nwant %+v", o.Repository, want)
	}
	identity, err := FindIdentity(filepath.Join(golden.Dir, "identity.txt"), o.ID, Asker{})
	check(t, err)
	check(t, identity.Check(&o))
	if identity.Signer == (seal.Signer{}) {
		t.Error("the identity file names no signer")
	}
	check(t, o.CheckSigner(worker.Signer, "the worker key"))
	if got, err := o.WorkerKey(identity.Opener); err != nil || !reflect.DeepEqual(got, worker) {
		t.Errorf("sealed worker key: %+v, %v", got, err)
	}
	if got, err := o.CommitterKey(identity.Opener); err != nil || !reflect.DeepEqual(got, committer) {
		t.Errorf("sealed committer key: %+v, %v", got, err)
	}
	if again, err := o.encode(committer.Signing); err != nil || !bytes.Equal(again, golden.Read(t, "repository")) {
		t.Errorf("the same object has another text: %v\n%s", err, again)
	}
}

// forger changes the golden object as an attacker with write access to the store could, who knows
// all unencrypted parts and signs with a key of his own.
func forger(t testing.TB, change func(*Object)) []byte {
	o, err := parseObject(golden.Read(t, "repository"))
	if err != nil {
		t.Fatal(err)
	}
	key := seal.NewSigningKey()
	committer := seal.CommitterKey{Repository: o.ID, Signing: key}
	sealer, err := seal.NewSealer(o.Recipients)
	if err != nil {
		t.Fatal(err)
	}
	worker := seal.WorkerKey{Repository: o.ID, Dedup: seal.NewDedupKey(), Signer: key.Signer(), Recipients: o.Recipients}
	o.Repository.Signer = key.Signer()
	if o.SealedWorkerKey, err = sealKey(sealer, worker); err != nil {
		t.Fatal(err)
	}
	if o.SealedCommitterKey, err = sealKey(sealer, committer); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&o)
	}
	text, err := o.encode(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// An object put in place of the repository's is refused if the signer is known from the index, a
// key file or the identity file.
func TestReplacedObjectIsRefused(t *testing.T) {
	forged, err := parseObject(forger(t, nil))
	check(t, err) // it is complete and signed, but by the wrong signer
	identity, err := FindIdentity(filepath.Join(golden.Dir, "identity.txt"), forged.ID, Asker{})
	check(t, err)
	if err := identity.Check(&forged); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("identity file: %v", err)
	}

	p := newPlace(t)
	made, err := p.init()
	check(t, err)
	o, err := ReadObject(context.Background(), p.store)
	check(t, err)
	key := seal.NewSigningKey()
	o.Repository.Signer = key.Signer()
	text, err := o.encode(key)
	check(t, err)
	check(t, p.store.Delete(context.Background(), store.ConfigName))
	check(t, p.store.PutNew(context.Background(), store.ConfigName, text))
	for who, err := range map[string]error{
		"index":         second(Check(context.Background(), p.store, p.index)),
		"worker key":    third(Load(context.Background(), p.store, unaware{p.index, o.Repository}, made.WorkerKeyPath)),
		"committer key": third(LoadCommitter(context.Background(), p.store, unaware{p.index, o.Repository}, made.CommitterKeyPath)),
	} {
		if !errors.Is(err, backup.ErrWrongKey) || !strings.Contains(err.Error(), "replaced") {
			t.Errorf("%s: %v", who, err)
		}
	}
	// Init does not complete it either, with any set of the keys: if the identity file does not
	// name a signer, a key does.
	silent := filepath.Join(p.dir, "silent.txt")
	text, err = os.ReadFile(made.IdentityPath)
	check(t, err)
	check(t, os.WriteFile(silent, bytes.ReplaceAll(text, []byte("# bctl signer "), []byte("# it was signed by ")), 0o600))
	for _, keep := range [][]string{{"worker.key", "committer.key"}, {"worker.key"}, {"committer.key"}, nil} {
		option := p.option
		if keep != nil {
			option.IdentityPath = silent
		}
		for _, name := range []string{"worker.key", "committer.key"} {
			moved := filepath.Join(p.dir, "missing "+name)
			path := map[string]*string{"worker.key": &option.WorkerKeyPath, "committer.key": &option.CommitterKeyPath}[name]
			*path = moved
			for _, k := range keep {
				if k == name {
					*path = filepath.Join(p.dir, name)
				}
			}
		}
		_, err := Init(context.Background(), p.store, unaware{p.index, backup.Repository{}}, option)
		if !errors.Is(err, backup.ErrWrongKey) || !strings.Contains(err.Error(), "replaced") {
			t.Errorf("init with %v: %v", keep, err)
		}
	}
}

func second[A any](_ A, err error) error        { return err }
func third[A, B any](_ A, _ B, err error) error { return err }

// An unaware index has another repository's row, or none.
type unaware struct {
	Index
	row backup.Repository
}

func (u unaware) Repository(context.Context) (backup.Repository, error) {
	if u.row.ID == (backup.RepositoryID{}) {
		return u.row, backup.ErrNoRepository
	}
	return u.row, nil
}

func TestObjectOfAnotherSigning(t *testing.T) {
	good := string(golden.Read(t, "repository"))
	committer, err := seal.ParseCommitterKey(golden.Read(t, "committer.key"))
	check(t, err)
	edit := func(from, to string) string {
		edited := strings.Replace(good, from, to, 1)
		if edited == good {
			t.Fatalf("%q is not there", from)
		}
		return edited
	}
	// sign signs the text before the signature, as an object of the given name and repository.
	sign := func(text, name string, id backup.RepositoryID, key seal.SigningKey) string {
		body, _, _ := strings.Cut(text, "signature ")
		signature := key.Sign(id, name, []byte(body))
		return body + "signature " + hex.EncodeToString(signature) + "\n"
	}
	own := func(text string) string { return sign(text, store.ConfigName, committer.Repository, committer.Signing) }
	if own(good) != good {
		t.Fatal("what the vectors are made with is not right itself")
	}
	signer := "signer " + committer.Signing.Signer().String()
	recipient, _, _ := strings.Cut(good[strings.Index(good, "recipient "):], "\n")
	var many strings.Builder
	for range seal.MaxRecipients {
		many.WriteString(recipient + "\n")
	}
	for what, test := range map[string]struct {
		text string
		want error
	}{
		"signed by another":            {sign(good, store.ConfigName, committer.Repository, seal.NewSigningKey()), backup.ErrCorrupt},
		"signed as another object":     {sign(good, "repositorY", committer.Repository, committer.Signing), backup.ErrCorrupt},
		"signed in another repository": {sign(good, store.ConfigName, backup.RepositoryID{1}, committer.Signing), backup.ErrCorrupt},
		"another recipient":            {edit("recipient age1", "recipient age2"), backup.ErrCorrupt},
		"another repository":           {edit("repository 67", "repository 68"), backup.ErrCorrupt},
		"another date":                 {edit("2026-11-22", "2026-11-23"), backup.ErrCorrupt},
		"another signer":               {edit(signer, "signer "+seal.NewSigningKey().Signer().String()), backup.ErrCorrupt},
		"a zero signer":                {edit(signer, "signer "+strings.Repeat("0", 64)), backup.ErrCorrupt},
		"a byte more":                  {good + "\n", backup.ErrCorrupt},
		"a line more":                  {good + "more 1\n", backup.ErrCorrupt},
		"a byte before":                {" " + good, backup.ErrCorrupt},
		"twice":                        {good + good, backup.ErrCorrupt},
		"JSON":                         {`{"version": 1}`, backup.ErrCorrupt},
		// The committers signed these, but no writer writes them.
		"no recipient":        {own(strings.ReplaceAll(good, "recipient ", "recipienT ")), backup.ErrCorrupt},
		"too many recipients": {own(edit(recipient+"\n", many.String())), backup.ErrCorrupt},
		"a zero repository":   {sign(edit("repository "+committer.Repository.String(), "repository "+strings.Repeat("0", 32)), store.ConfigName, backup.RepositoryID{}, committer.Signing), backup.ErrCorrupt},
		"parts of a second":   {own(edit("05Z", "05.5Z")), backup.ErrCorrupt},
		"lines exchanged":     {own(edit("codec zstd-1\n", "") + "codec zstd-1\n"), backup.ErrCorrupt},
		"a later version":     {own(edit("bctl-repository v1", "bctl-repository v2")), backup.ErrInvalid},
	} {
		o, err := parseObject([]byte(test.text))
		if !errors.Is(err, test.want) || !reflect.DeepEqual(o, Object{}) {
			t.Errorf("%s: %v, want %v; %+v", what, err, test.want, o)
		}
		if test.want == backup.ErrInvalid && errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s reads as damage: %v", what, err)
		}
	}
	for i := range good {
		if _, err := parseObject([]byte(good[:i])); !errors.Is(err, backup.ErrCorrupt) {
			t.Fatalf("cut after %d of %d bytes: %v", i, len(good), err)
		}
	}
}

// Keys of another repository, or signer, that are sealed in the object are refused.
func TestSealedKeysBelongToTheObject(t *testing.T) {
	identity, err := FindIdentity(filepath.Join(golden.Dir, "identity.txt"), goldenRepository.ID, Asker{})
	check(t, err)
	good, err := parseObject(golden.Read(t, "repository"))
	check(t, err)
	// The forger seals the unencrypted parts under his own signature.
	mixed, err := parseObject(forger(t, func(o *Object) {
		o.SealedWorkerKey, o.SealedCommitterKey = good.SealedWorkerKey, good.SealedCommitterKey
	}))
	check(t, err)
	if _, err := mixed.WorkerKey(identity.Opener); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("worker key of another signer: %v", err)
	}
	if _, err := mixed.CommitterKey(identity.Opener); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("committer key of another signer: %v", err)
	}
	swapped, err := parseObject(forger(t, func(o *Object) { o.SealedWorkerKey, o.SealedCommitterKey = o.SealedCommitterKey, o.SealedWorkerKey }))
	check(t, err)
	if _, err := swapped.WorkerKey(identity.Opener); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("a committer key for a worker key: %v", err)
	}
}

// An object that could not be read is not written.
func TestObjectThatCannotBeRead(t *testing.T) {
	key := seal.NewSigningKey()
	for what, change := range map[string]func(*Object){
		"a line feed in the chunker": func(o *Object) { o.Chunker = "a\nb" },
		"no recipients":              func(o *Object) { o.Recipients = nil },
		"no worker key":              func(o *Object) { o.SealedWorkerKey = nil },
		"a year of five digits":      func(o *Object) { o.Created = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"no id":                      func(o *Object) { o.ID = backup.RepositoryID{} },
	} {
		o, err := parseObject(golden.Read(t, "repository"))
		check(t, err)
		change(&o)
		if _, err := o.encode(key); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestObjectIsBounded(t *testing.T) {
	data := append(golden.Read(t, "repository"), make([]byte, 16<<20)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := parseObject(data)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 || !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("%d bytes were allocated: %v", n, err)
	}
}

// Any bytes are an error, or an object with this text.
func FuzzParseObject(f *testing.F) {
	good := golden.Read(f, "repository")
	committer, err := seal.ParseCommitterKey(golden.Read(f, "committer.key"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, false)
	f.Add(good, true)
	f.Add(bytes.Replace(good, []byte("v1"), []byte("v2"), 1), true)
	f.Add([]byte(`{"version": 1, "id": "x", "more": 1}`), false)
	f.Fuzz(func(t *testing.T, data []byte, sign bool) {
		// So that mutations reach the part behind it.
		if body, _, ok := strings.Cut(string(data), "signature "); sign && ok {
			data = []byte(body + "signature " + hex.EncodeToString(committer.Signing.Sign(committer.Repository, store.ConfigName, []byte(body))) + "\n")
		}
		o, err := parseObject(data)
		if err != nil {
			if !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrInvalid) {
				t.Errorf("error of no kind: %v", err)
			}
			return
		}
		if again, err := o.encode(committer.Signing); err != nil || !bytes.Equal(again, data) {
			t.Errorf("%q is another text of %q (%v)", data, again, err)
		}
	})
}
