package paper

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"strings"

	"github.com/boombuler/barcode/qr"
)

const (
	quietModules = 4 // the margin that the standard requires
	modulePixels = 8
)

// A Code is a QR code.
type Code struct {
	dark func(x, y int) bool
	size int // modules in a row
}

// NewCode returns the QR code of a content, with medium error correction.
func NewCode(content string) (*Code, error) {
	made, err := qr.Encode(content, qr.M, qr.AlphaNumeric)
	if err != nil {
		return nil, fmt.Errorf("make a QR code: %w", err)
	}
	return &Code{size: made.Bounds().Dx(), dark: func(x, y int) bool {
		return color.GrayModel.Convert(made.At(x, y)).(color.Gray).Y < 128
	}}, nil
}

// isDark reports whether a module is dark, also in the margin.
func (c *Code) isDark(x, y int) bool {
	x, y = x-quietModules, y-quietModules
	return x >= 0 && y >= 0 && x < c.size && y < c.size && c.dark(x, y)
}

// PNG returns the code as an image.
func (c *Code) PNG() ([]byte, error) {
	width := (c.size + 2*quietModules) * modulePixels
	picture := image.NewPaletted(image.Rect(0, 0, width, width), color.Palette{color.White, color.Black})
	for y := range width {
		for x := range width {
			if c.isDark(x/modulePixels, y/modulePixels) {
				picture.SetColorIndex(x, y, 1)
			}
		}
	}
	var out bytes.Buffer
	err := png.Encode(&out, picture)
	return out.Bytes(), err
}

// Text returns the code as lines of block characters, two rows of modules in each. With colors, it
// is black on white on every terminal.
func (c *Code) Text(colors bool) string {
	var out strings.Builder
	width := c.size + 2*quietModules
	for y := 0; y < width; y += 2 {
		if colors {
			out.WriteString("\x1b[30;107m")
		}
		for x := range width {
			out.WriteString([]string{" ", "▄", "▀", "█"}[number(c.isDark(x, y))*2+number(c.isDark(x, y+1))])
		}
		if colors {
			out.WriteString("\x1b[0m")
		}
		out.WriteString("\n")
	}
	return out.String()
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
