package telemetry

import (
	"crypto/x509"
	"encoding/pem"
	"os"

	"github.com/prometheus/client_golang/prometheus"
)

// Certificates tells when the certificates end that a process shows: its files, by what they are used for ("nats");
// "" is none. They are read again at each scrape, for they may have been rotated.
func (m *Metrics) Certificates(files map[string]string) {
	if m == nil {
		return
	}
	for use, file := range files {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "bctl_certificate_expires_timestamp_seconds",
			Help:        "When the certificate ends that this process shows there, in seconds since 1970; 0: there is none, or it cannot be read.",
			ConstLabels: prometheus.Labels{"use": use},
		}, func() float64 { return ends(file) }))
	}
}

// ends is when the first certificate of a PEM file does: the one that is shown, before those that have signed it.
func ends(file string) float64 {
	if file == "" {
		return 0
	}
	rest, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return 0
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return 0
		}
		return float64(certificate.NotAfter.Unix())
	}
}
