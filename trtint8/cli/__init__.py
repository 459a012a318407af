"""`trtint8 <verb>`: one small file a verb."""
