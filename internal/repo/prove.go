package repo

import (
	"bytes"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
)

// prove makes a test restore, with the files that Init has written and not with what it still has
// in memory: a reader's pack that the worker key file seals must open with the identity file, and
// so must the keys in the repository object whose text is given.
func prove(objectText []byte, made Created, ask Asker) error {
	object, err := parseObject(objectText)
	if err != nil {
		return err
	}
	identity, err := FindIdentity(made.IdentityPath, object.ID, ask)
	if err != nil {
		return err
	}
	if err := identity.Check(&object); err != nil {
		return err
	}
	written, err := object.ReadWorkerKey(made.WorkerKeyPath)
	if err != nil {
		return err
	}
	key, err := object.WorkerKey(identity.Opener)
	if err == nil && key.Dedup != written.Dedup {
		err = fmt.Errorf("%s and the sealed worker key differ: %w", made.WorkerKeyPath, backup.ErrCorrupt)
	}
	if err == nil {
		_, err = object.CommitterKey(identity.Opener)
	}
	if err == nil {
		err = RestoreProbe(written, identity.Opener)
	}
	if err != nil {
		return fmt.Errorf("identity %s does not open what is sealed to it: %w", made.IdentityPath, err)
	}
	return nil
}

// RestoreProbe seals a pack with a worker key, as a reader does, in memory, and restores its
// content with an identity.
func RestoreProbe(worker seal.WorkerKey, opener *seal.Opener) error {
	content := []byte("bctl test restore")
	sealer, err := seal.NewSealer(worker.Recipients)
	if err != nil {
		return err
	}
	hasher := chunk.NewHasher([32]byte(worker.Dedup))
	id := backup.NewPackID()
	w, err := pack.NewWriter(pack.KindData, worker.Repository, id, sealer, nil)
	if err != nil {
		return err
	}
	_, err = w.Add(pack.Frame{
		Codec: pack.CodecNone, RawLength: len(content), Body: content,
		Chunks: []pack.Chunk{{Hash: hasher.Sum(content), Length: uint32(len(content))}},
	})
	if err != nil {
		return err
	}
	data, err := w.Finish()
	if err != nil {
		return err
	}
	r, err := pack.OpenBytes(data, worker.Repository, id, opener)
	if err != nil {
		return err
	}
	f := r.Frames()[0]
	restored, err := r.DecodeFrame(nil, 0, data[f.Offset:f.Offset+f.SealedLength], hasher)
	if err == nil && !bytes.Equal(restored, content) {
		err = fmt.Errorf("other content came back: %w", backup.ErrCorrupt)
	}
	return err
}
