package walk

import (
	"errors"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/source"
)

// A failed attempt that is made again is reported as work handed back.
func TestRetriesAreReported(t *testing.T) {
	report := flow.NewReporter(nil, "walker")
	New(nil, nil, nil, report, Options{}).retrying(&backup.WalkTask{}, errors.New("is it mounted here?"))
	var i flow.Instance
	if report.InHand(&i); i.HandedBack != 1 || i.HandedBackWhy != "is it mounted here?" || len(i.HandBacks) != 1 || i.HandBacks[0].Unseen {
		t.Errorf("%+v", i)
	}
	New(nil, nil, nil, report, Options{}).retrying(&backup.WalkTask{}, &source.OtherTreeError{What: "nothing is there"})
	if report.InHand(&i); i.HandedBack != 2 || len(i.HandBacks) != 2 || !i.HandBacks[1].Unseen {
		t.Errorf("%+v", i)
	}
}
