-- What may come again: a path after its purge, and packs after their loss. Binaries of version 11 can work with this schema: their purges
-- concern later snapshots, too, and are not complete while one of these has the path again; their sweeps delete lost packs that are back.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (26, 11);
-- The greatest number of a snapshot of the shard when the purge began: later ones may have the path again.
ALTER TABLE purges ADD COLUMN through INTEGER NOT NULL DEFAULT 9223372036854775807;
UPDATE purges SET through = coalesce(
    (SELECT max(number) FROM snapshots WHERE shard_id = purges.shard AND unixepoch(substr(snapshots.started, 1, 19)) <= purges.started / 1000000),
    (SELECT last_number FROM shards WHERE shards.id = purges.shard));

-- Packs that a repair has dropped because the store had lost them. If the store has them again, a repair takes them back.
CREATE TABLE lost_packs (
    pack          uuid NOT NULL PRIMARY KEY, -- as in packs
    sealed        uuid NULL,
    snapshot      uuid NOT NULL,
    object        uuid NOT NULL,
    object_offset INTEGER NOT NULL,
    stored_bytes  INTEGER NOT NULL,
    frame_bytes   BLOB NOT NULL,
    sums          BLOB NOT NULL,
    chunks        BLOB NOT NULL -- of each: id (16 bytes), frame, offset and length (4 bytes each)
);
CREATE INDEX lost_packs_object ON lost_packs (object);

-- +goose Down
DROP TABLE lost_packs;
ALTER TABLE purges DROP COLUMN through;
DELETE FROM schema_versions WHERE version = 26;
