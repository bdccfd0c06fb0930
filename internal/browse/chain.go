package browse

import (
	"fmt"

	"github.com/bctl/bctl/internal/backup"
)

// A Chain checks that all pages of one directory are present: each page but the last names the key
// of the next. It takes no memory per page. The zero Chain has no page.
type Chain struct {
	pages, nexts int    // nexts counts the pages that are not the last
	keys, named  uint64 // sums of the keys of the pages present, and of the keys that they name
	hasFirst     bool
}

// Add adds a page. The order of the pages does not matter.
func (c *Chain) Add(key, next backup.PageKey) {
	c.pages++
	c.keys += uint64(key)
	c.hasFirst = c.hasFirst || key == 0
	if next != 0 {
		c.nexts++
		c.named += uint64(next)
	}
}

// Err returns nil if all pages of the directory are present, and otherwise an error that wraps
// backup.ErrCorrupt.
func (c *Chain) Err() error {
	switch {
	case c.pages == 0:
		return fmt.Errorf("the index has none of its pages; another snapshot may have what is missing, or on one machine the copy of the index in the store (move the index away and run bctl index rebuild): %w", backup.ErrCorrupt)
	case !c.hasFirst || c.pages != c.nexts+1 || c.keys != c.named:
		return fmt.Errorf("the index has %d of its pages, and lacks others; another snapshot may have what is missing, or on one machine the copy of the index in the store (move the index away and run bctl index rebuild): %w", c.pages, backup.ErrCorrupt)
	}
	return nil
}
