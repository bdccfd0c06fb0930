// Package paper writes secrets as texts that a person can print, and type again.
//
// A text consists of numbered lines of up to 20 characters and a check, so that a typing mistake is
// found, and its line named. The same content without lines fits a QR code.
//
// Two kinds of content are written so: an identity, and a share of an identity. With enough shares,
// and not with fewer, the identity can be recovered (Shamir's secret sharing).
// docs/formats/keys.md describes both.
//
// # Files
//
//	lines.go     the lines
//	identity.go  an identity as a content
//	share.go     shares of an identity
//	qr.go        QR codes
package paper
