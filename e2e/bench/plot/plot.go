// Package plot draws the figures of benchmarks as SVG: bars of one figure by
// tool, and lines of figures over a size. A plot is text: the same figures give the same text. It
// is small enough to be kept beside a document.
package plot

import (
	"fmt"
	"html"
	"math"
	"strings"
)

const (
	widthPixels  = 720
	barPixels    = 18
	labelPixels  = 120
	valuePixels  = 90
	titlePixels  = 26
	heightPixels = 300 // of lines
	marginPixels = 56
)

// A Bar is one figure. The marked ones are what the plot is about.
type Bar struct {
	Label  string
	Value  float64
	Marked bool
}

// A Panel is some bars with an axis of their own.
type Panel struct {
	Title string
	Unit  string
	Bars  []Bar
}

// Bars draws panels, one below the other. Bars begin at zero.
func Bars(panels []Panel) string {
	var body strings.Builder
	y := 0
	for _, p := range panels {
		text(&body, 0, y+17, "start", "bold", p.Title)
		y += titlePixels
		largest := 0.0
		for _, b := range p.Bars {
			largest = max(largest, b.Value)
		}
		for _, b := range p.Bars {
			color := plain
			if b.Marked {
				color = marked
			}
			length := 0.0
			if largest > 0 {
				length = b.Value / largest * (widthPixels - labelPixels - valuePixels)
			}
			text(&body, labelPixels-6, y+13, "end", "normal", b.Label)
			fmt.Fprintf(&body, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", labelPixels, y+2, max(length, 1), barPixels-4, color)
			text(&body, labelPixels+int(length)+5, y+13, "start", "normal", number(b.Value)+" "+p.Unit)
			y += barPixels
		}
		y += barPixels / 2
	}
	return document(y, body.String())
}

const (
	plain  = "#9aa5b1"
	marked = "#1f77b4"
	grid   = "#d0d4d9"
)

// colors are those of lines, the first of what the plot is about.
var colors = []string{marked, "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f"}

// A Point of a line.
type Point struct{ X, Y float64 }

// A Series is one line; its points are in the order of X.
type Series struct {
	Label  string
	Points []Point
}

// Lines draws series over a logarithmic x axis; y begins at zero.
func Lines(title, xLabel, yLabel string, series []Series) string {
	left, right := math.Inf(1), math.Inf(-1)
	top := 0.0
	for _, s := range series {
		for _, p := range s.Points {
			left, right, top = min(left, p.X), max(right, p.X), max(top, p.Y)
		}
	}
	if top == 0 {
		top = 1
	}
	const inner, plotWidth = heightPixels - 2*marginPixels, widthPixels - 2*marginPixels - 60
	x := func(v float64) float64 {
		if right <= left || left <= 0 {
			return marginPixels + plotWidth/2
		}
		return marginPixels + math.Log(v/left)/math.Log(right/left)*plotWidth
	}
	y := func(v float64) float64 { return heightPixels - marginPixels - v/top*inner }
	var body strings.Builder
	text(&body, 0, 17, "start", "bold", title)
	for i := range 5 {
		v := top * float64(i) / 4
		fmt.Fprintf(&body, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s"/>`+"\n", marginPixels, y(v), marginPixels+plotWidth, y(v), grid)
		text(&body, marginPixels-6, int(y(v))+4, "end", "normal", number(v))
	}
	ticks(&body, series, x)
	text(&body, marginPixels, marginPixels-12, "start", "normal", yLabel)
	text(&body, marginPixels+plotWidth, heightPixels-12, "end", "normal", xLabel)
	for n, s := range series {
		color := colors[n%len(colors)]
		var path []string
		for _, p := range s.Points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(p.X), y(p.Y)))
			fmt.Fprintf(&body, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(p.X), y(p.Y), color)
		}
		fmt.Fprintf(&body, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(path, " "), color)
		at := marginPixels + 14*n
		fmt.Fprintf(&body, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/>`+"\n", marginPixels+plotWidth+8, at-9, color)
		text(&body, marginPixels+plotWidth+22, at, "start", "normal", s.Label)
	}
	return document(heightPixels, body.String())
}

// ticks marks each x that has a point.
func ticks(body *strings.Builder, series []Series, x func(float64) float64) {
	seen := map[float64]bool{}
	for _, s := range series {
		for _, p := range s.Points {
			if !seen[p.X] {
				seen[p.X] = true
				text(body, int(x(p.X)), heightPixels-marginPixels+16, "middle", "normal", number(p.X))
			}
		}
	}
}

func text(w *strings.Builder, x, y int, anchor, weight, s string) {
	fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="%s" font-weight="%s">%s</text>`+"\n", x, y, anchor, weight, html.EscapeString(s))
}

// number formats a number with three significant digits.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v/1e6), ".0") + "M"
	case a >= 1e4:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v/1e3), ".0") + "k"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
	case v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// document is white below, so that it can be read on any page.
func document(height int, body string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 -4 %d %d" width="%d" font-family="sans-serif" font-size="12">
<rect x="-10" y="-4" width="100%%" height="100%%" fill="white"/>
%s</svg>
`, widthPixels+20, height+8, widthPixels+20, body)
}
