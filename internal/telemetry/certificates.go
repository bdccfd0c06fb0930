package telemetry

import (
	"crypto/x509"
	"encoding/pem"
	"os"

	"github.com/prometheus/client_golang/prometheus"
)

// Certificates exports the expiry times of the certificates that a process presents. files maps a
// use ("nats") to a file; "" means none. The files are read again at each scrape, because they may
// have been rotated.
func (m *Metrics) Certificates(files map[string]string) {
	if m == nil {
		return
	}
	for use, file := range files {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "bctl_certificate_expires_timestamp_seconds",
			Help:        "When the certificate that this process presents there expires, in seconds since 1970; 0: there is none, or it cannot be read.",
			ConstLabels: prometheus.Labels{"use": use},
		}, func() float64 { return ends(file) }))
	}
}

// ends returns when the first certificate of a PEM file expires: the leaf, which precedes the
// certificates that signed it.
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
