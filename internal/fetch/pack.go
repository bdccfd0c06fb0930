package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
)

const (
	// maxRangeBytes is the maximum size of one read, except for a single frame. Several ranges of a
	// pack are read concurrently, which uses a link better than one read of the whole.
	maxRangeBytes = 8 << 20
	// maxGapBytes is the largest gap that is read and discarded to save a request.
	maxGapBytes = 256 << 10
)

// frameWants are the wants of one frame.
type frameWants struct {
	frame uint32
	info  pack.FrameInfo
	wants []located
}

// getPack delivers the wants of one pack.
func (f *Fetcher) getPack(ctx context.Context, wants []located, missed *misses) error {
	var r *reader
	fatal, err := f.request(ctx, func() (err error) {
		r, err = f.readers.get(ctx, wants[0].at.PackPlace)
		return err
	})
	if err != nil {
		if fatal {
			return err
		}
		missed.add(wants, err)
		return nil
	}
	frames := r.frames(wants, missed)
	g, ctx := errgroup.WithContext(ctx)
	for len(frames) > 0 {
		n := rangeOf(frames)
		run := frames[:n]
		frames = frames[n:]
		var s *scratch
		select {
		case s = <-f.slots:
		case <-ctx.Done():
			return errors.Join(g.Wait(), context.Cause(ctx))
		}
		g.Go(func() error {
			defer func() { f.slots <- s }()
			return f.getRange(ctx, r, run, s, missed)
		})
	}
	return g.Wait()
}

// frames groups the wants by frame, in the order of the frames in the pack. Wants of a frame that
// the pack does not have are missed.
func (r *reader) frames(wants []located, missed *misses) []frameWants {
	var frames []frameWants
	infos := r.pack.Frames()
	for len(wants) > 0 {
		n := 1
		for n < len(wants) && wants[n].at.Frame == wants[0].at.Frame {
			n++
		}
		frame := wants[0].at.Frame
		switch {
		case uint64(frame) >= uint64(len(infos)):
			missed.add(wants[:n], fmt.Errorf("pack %v has no frame %d: %w", wants[0].at.Pack, frame, backup.ErrCorrupt))
		case infos[frame].Removed:
			missed.add(wants[:n], fmt.Errorf("frame %d of pack %v was removed: %w", frame, wants[0].at.Pack, backup.ErrNotFound))
		default:
			frames = append(frames, frameWants{frame, infos[frame], wants[:n]})
		}
		wants = wants[n:]
	}
	slices.SortFunc(frames, func(a, b frameWants) int {
		if a.info.Offset < b.info.Offset {
			return -1
		}
		return 1
	})
	return frames
}

// rangeOf returns how many of the frames, from the first on, form one read.
func rangeOf(frames []frameWants) int {
	start := frames[0].info.Offset
	for n := 1; n < len(frames); n++ {
		before, next := frames[n-1].info, frames[n].info
		gap := next.Offset - (before.Offset + before.SealedLength)
		if gap > maxGapBytes || next.Offset+next.SealedLength-start > maxRangeBytes {
			return n
		}
	}
	return len(frames)
}

// getRange reads adjacent frames at once and delivers the chunks that are wanted of them.
func (f *Fetcher) getRange(ctx context.Context, r *reader, frames []frameWants, s *scratch, missed *misses) error {
	first, last := frames[0].info, frames[len(frames)-1].info
	length := last.Offset + last.SealedLength - first.Offset
	fatal, err := f.request(ctx, func() (err error) {
		s.sealed, err = f.o.Store.GetRange(ctx, s.sealed[:0], r.place.Object, r.place.Offset+first.Offset, length)
		return err
	})
	if err != nil {
		if fatal {
			return err
		}
		for _, fw := range frames {
			missed.add(fw.wants, err)
		}
		return nil
	}
	for _, fw := range frames {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		from := fw.info.Offset - first.Offset
		sealed := s.sealed[from : from+fw.info.SealedLength]
		s.plain, err = r.pack.DecodeFrame(s.plain[:0], fw.frame, sealed, s.hasher)
		if err != nil {
			missed.add(fw.wants, fmt.Errorf("object %s: %w", r.place.Object, err))
			continue
		}
		if f.o.Frame != nil {
			f.o.Frame(r.frame(fw.frame, s.plain))
		}
		r.deliver(s.plain, fw, missed)
	}
	return nil
}

// deliver passes a frame's chunks to their sinks.
func (r *reader) deliver(plain []byte, fw frameWants, missed *misses) {
	for i := range fw.wants {
		w := &fw.wants[i]
		end := int64(w.at.Start) + int64(w.at.Length)
		if hash, ok := r.hash(fw.frame, w.at.Start, w.at.Length); !ok || hash.ID() != w.Chunk || end > int64(len(plain)) {
			missed.add(fw.wants[i:i+1], fmt.Errorf("pack %v does not hold chunk %v where the index says: %w", w.at.Pack, w.Chunk, backup.ErrCorrupt))
			continue
		}
		w.Sink.Chunk(w.Tag, plain[w.at.Start:end])
	}
}
