package telemetry

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

func TestFormatFollowsTheTerminal(t *testing.T) {
	for _, test := range []struct {
		format   string
		terminal bool
		want     string
	}{
		{"auto", true, "level=WARN"},
		{"auto", false, `"level":"WARN"`},
		{"json", true, `"level":"WARN"`},
		{"text", false, "level=WARN"},
	} {
		var out bytes.Buffer
		log, err := NewLogger(&out, test.terminal, "warn", test.format)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("not this")
		log.Warn("this")
		if got := out.String(); !strings.Contains(got, test.want) || strings.Contains(got, "not this") {
			t.Errorf("format %s, terminal %v: %q", test.format, test.terminal, got)
		}
	}
}

func TestWrongSettings(t *testing.T) {
	for _, s := range [][2]string{{"loud", "text"}, {"info", "xml"}} {
		if _, err := NewLogger(nil, false, s[0], s[1]); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("level %s, format %s: %v", s[0], s[1], err)
		}
	}
}
