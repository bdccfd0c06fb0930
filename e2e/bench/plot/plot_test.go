package plot_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/bench/plot"
)

// wellFormed reads the whole of an SVG, and returns how often each element is in it.
func wellFormed(t *testing.T, svg string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return counts
		}
		if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
		if start, ok := token.(xml.StartElement); ok {
			counts[start.Name.Local]++
		}
	}
}

func TestBars(t *testing.T) {
	svg := plot.Bars([]plot.Panel{
		{"First <backup>", "s", []plot.Bar{{"bctl", 2, true}, {"tar & zstd", 4, false}}},
		{"Nothing", "s", []plot.Bar{{"bctl", 0, true}}},
	})
	if n := wellFormed(t, svg); n["rect"] != 1+3 || n["text"] != 2+3*2 {
		t.Errorf("%v in %s", n, svg)
	}
	// The longer bar is as wide as there is room, the other half of it.
	if !strings.Contains(svg, `width="510.0"`) || !strings.Contains(svg, `width="255.0"`) {
		t.Errorf("bars are not in proportion: %s", svg)
	}
}

func TestLines(t *testing.T) {
	svg := plot.Lines("Memory", "files", "MiB", []plot.Series{
		{"bctl", []plot.Point{{10_000, 50}, {100_000, 60}, {1_000_000, 60}}},
		{"peer", []plot.Point{{10_000, 50}, {1_000_000, 600}}},
	})
	if n := wellFormed(t, svg); n["polyline"] != 2 || n["circle"] != 5 {
		t.Errorf("%v in %s", n, svg)
	}
	for _, label := range []string{">10k<", ">100k<", ">1M<"} {
		if strings.Count(svg, label) != 1 {
			t.Errorf("%s is not there once: %s", label, svg)
		}
	}
}

// One size is no range: the plot is drawn all the same.
func TestLinesOfOnePoint(t *testing.T) {
	svg := plot.Lines("Memory", "files", "MiB", []plot.Series{{"bctl", []plot.Point{{10, 0}}}})
	wellFormed(t, svg)
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Error(svg)
	}
}
