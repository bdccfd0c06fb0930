// Package independent holds bctl's formats against a reader that shares no code
// with them: a Python program that is written from docs/formats. Its tests need
// the build tag independent.
package independent
