-- The hot tables, written in bulk and by hand. internal/index says what they mean.

-- +goose Up

-- A version of a page, valid from first_snapshot to last_snapshot of its shard; NULL: still current.
-- The listing is last: rows are read up to the last column that is asked for.
CREATE TABLE pages (
    shard          INTEGER NOT NULL,
    page           INTEGER NOT NULL,
    first_snapshot INTEGER NOT NULL,
    last_snapshot  INTEGER,
    inode          INTEGER NOT NULL,
    directory      BLOB    NOT NULL,
    fingerprint    BLOB    NOT NULL,
    path_key       BLOB    NOT NULL,
    listing        BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX pages_key ON pages (shard, directory, page, first_snapshot);
-- A subtree is one range of this index; keys have no limit here. It has all that a mark has, so that an
-- unchanged tree is compared without a look at the table.
CREATE INDEX pages_path ON pages (shard, path_key, page, first_snapshot, last_snapshot, fingerprint, directory);
-- A directory that was moved, by its inode.
CREATE INDEX pages_inode ON pages (shard, inode) WHERE page = 0 AND inode <> 0;
-- What one snapshot began and ended: its segment, its undo, and garbage collection.
CREATE INDEX pages_first ON pages (shard, first_snapshot);
CREATE INDEX pages_last ON pages (shard, last_snapshot) WHERE last_snapshot IS NOT NULL;

-- Where a chunk is: the pack is packs.id.
CREATE TABLE chunks (
    id           BLOB    NOT NULL PRIMARY KEY,
    pack         INTEGER NOT NULL,
    frame        INTEGER NOT NULL,
    frame_offset INTEGER NOT NULL,
    length       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Whoever relies on pack relies on relies_on too: pack came with chunks that were there already.
CREATE TABLE pack_dependencies (
    pack      INTEGER NOT NULL,
    relies_on INTEGER NOT NULL,
    PRIMARY KEY (pack, relies_on)
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE pack_dependencies;
DROP TABLE chunks;
DROP TABLE pages;
