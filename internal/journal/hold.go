package journal

import (
	"encoding/base64"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/backup"
)

// A CatalogHold is a hold on a snapshot, on a shard, or on a path of a shard. Exactly one of
// Snapshot and Shard is set.
type CatalogHold struct {
	ID       int64  `json:"id"`
	Snapshot string `json:"snapshot,omitempty"`
	Shard    string `json:"shard,omitempty"` // the key
	// Path is within the shard; empty: none. PathBytes is the path in base64 if it is not UTF-8.
	Path      string    `json:"path,omitempty"`
	PathBytes string    `json:"path_b64,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	By        string    `json:"by"`
	Login     string    `json:"login,omitempty"`
	Since     time.Time `json:"since"`
	// Alarm is the snapshot that raised the alarm which put the shard on hold.
	Alarm string `json:"alarm,omitempty"`
}

// SetPath sets Path or PathBytes.
func (h *CatalogHold) SetPath(path string) {
	h.Path, h.PathBytes = path, ""
	if !utf8.ValidString(path) {
		h.Path, h.PathBytes = "", base64.StdEncoding.EncodeToString([]byte(path))
	}
}

// PathOnHold returns the path; empty: none.
func (h *CatalogHold) PathOnHold() (string, error) {
	if h.PathBytes == "" {
		return h.Path, nil
	}
	raw, err := base64.StdEncoding.DecodeString(h.PathBytes)
	if err != nil {
		return "", fmt.Errorf("hold %d: %w: %w", h.ID, err, backup.ErrCorrupt)
	}
	return string(raw), nil
}

// check returns an error unless h is a valid hold.
func (h *CatalogHold) check() error {
	path, err := h.PathOnHold()
	if err != nil {
		return err
	}
	if err := backup.CheckPath(path); err != nil {
		return fmt.Errorf("hold %d: %w: %w", h.ID, err, backup.ErrCorrupt)
	}
	if h.ID < 1 || (h.Snapshot != "") == (h.Shard != "") || path != "" && h.Shard == "" || h.Snapshot != "" && !isID(h.Snapshot) || h.Shard != "" && !isID(h.Shard) ||
		h.Alarm != "" && (!isID(h.Alarm) || h.Shard == "" || path != "") {
		return fmt.Errorf("hold %d of snapshot %.40q and shard %.40q: %w", h.ID, h.Snapshot, h.Shard, backup.ErrCorrupt)
	}
	return nil
}
