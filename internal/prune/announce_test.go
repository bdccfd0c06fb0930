package prune

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// unrecorded is an index whose catalog no committer puts.
type unrecorded struct {
	leaders []index.Leader
	err     error
}

func (u unrecorded) AnnounceDeletion(context.Context) (int64, error) { return 1, nil }

func (u unrecorded) WrittenCatalog(context.Context) (index.WrittenCatalog, error) {
	return index.WrittenCatalog{}, nil
}

func (u unrecorded) Leaders(context.Context) ([]index.Leader, error) { return u.leaders, u.err }

// If no catalog is put, the error names the cause, as far as the index knows it.
func TestWhyNothingIsRecorded(t *testing.T) {
	leader := func(role string) []index.Leader { return []index.Leader{{Term: index.Term{Role: role}}} }
	for name, test := range map[string]struct {
		idx  unrecorded
		want string
	}{
		"no committer leads": {unrecorded{leaders: leader(Role)}, ": no committer leads, because none runs (start one), or those that run do not reach NATS or Postgres"},
		"one leads":          {unrecorded{leaders: leader(index.KeeperRole)}, ": a committer leads, but it does not reach the store, or it is of an earlier version"},
		"it is not known":    {unrecorded{err: errors.New("not allowed")}, ": perhaps no committer leads"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := AwaitRecorded(t.Context(), test.idx)
				if !errors.Is(err, ErrNotRecorded) || !errors.Is(err, backup.ErrUnavailable) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %q", err, test.want)
				}
			})
		})
	}
}
