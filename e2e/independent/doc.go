// Package independent tests bctl's formats with a reader that shares no code with bctl: a Python
// program that is written from docs/formats. Its tests need the build tag independent.
package independent
